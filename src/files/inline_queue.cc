#include "files/inline_queue.h"

#include "files/transfer.h"

namespace penstock::files {

std::size_t InlineQueue::submit(std::span<const engine::Op> ops) {
  std::size_t taken = 0;
  while (taken < ops.size() && !done_.full()) done_.push(transfer(ops[taken++]));
  return taken;
}

std::size_t InlineQueue::poll(std::span<engine::Done> done, TimePoint deadline) {
  std::size_t count = 0;
  while (count < done.size() && !done_.empty()) done[count++] = done_.pop();
  if (count > 0 || Clock::now() >= deadline) return count;
  std::unique_lock lock(mutex_);
  if (woken_changed_.wait_until(lock, deadline, [this] { return woken_; })) woken_ = false;
  return 0;
}

void InlineQueue::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  woken_changed_.notify_one();
}

}  // namespace penstock::files
