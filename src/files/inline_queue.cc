#include "files/inline_queue.h"

#include <algorithm>
#include <thread>

#include "base/spin.h"
#include "files/transfer.h"

namespace penstock::files {

namespace {

// How long a thread spins while helpers end their last stretches, before it yields.
constexpr Duration spin_before_yielding = std::chrono::microseconds(100);

}  // namespace

std::size_t InlineQueue::submit(std::span<const engine::Op> ops) {
  std::size_t taken = 0;
  for (; taken < ops.size() && done_.size() + shared_count_ < done_.capacity(); ++taken) {
    const engine::Op& op = ops[taken];
    if (!op.is_shared || !team_ || !begin_shared(op)) done_.push(transfer(op));
  }
  return taken;
}

bool InlineQueue::begin_shared(const engine::Op& op) {
  const auto free = std::ranges::find_if(shared_, [](const auto& shared) { return !shared; });
  if (free == shared_.end()) return false;
  Shared& shared = free->emplace(op);
  shared.slot = team_->begin(shared.read);
  ++shared_count_;
  return true;
}

void InlineQueue::end_shared() {
  for (auto& shared : shared_) {
    if (!shared || !shared->read.is_over()) continue;
    if (shared->slot != nullptr) ReadTeam::end(*shared->slot);
    done_.push(shared->read.done());
    shared.reset();
    --shared_count_;
  }
}

bool InlineQueue::work_on_shared() {
  return std::ranges::any_of(shared_, [&](auto& shared) { return shared && team_->work(shared->read); });
}

std::size_t InlineQueue::poll(std::span<engine::Done> done, TimePoint deadline) {
  TimePoint idle_since = TimePoint::max();
  while (shared_count_ != 0 && done_.empty()) {
    const bool has_worked = work_on_shared();
    end_shared();
    const TimePoint now = Clock::now();
    if (now >= deadline) break;
    if (has_worked) {
      idle_since = TimePoint::max();
      continue;
    }
    idle_since = std::min(idle_since, now);
    if (now - idle_since < spin_before_yielding) {
      relax_processor();
    } else {
      std::this_thread::yield();
    }
  }
  std::size_t count = 0;
  while (count < done.size() && !done_.empty()) done[count++] = done_.pop();
  if (count > 0 || shared_count_ != 0 || Clock::now() >= deadline) return count;
  std::unique_lock lock(mutex_);
  if (woken_changed_.wait_until(lock, deadline, [this] { return woken_; })) woken_ = false;
  return 0;
}

void InlineQueue::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  woken_changed_.notify_one();
}

void InlineQueue::cancel(std::uint64_t cookie) {
  for (auto& shared : shared_) {
    if (shared && shared->read.op().cookie == cookie) shared->read.cancel();
  }
}

}  // namespace penstock::files
