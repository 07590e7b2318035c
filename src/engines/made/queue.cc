#include "engines/made/queue.h"

#include <algorithm>

#include "base/callback.h"

namespace penstock::made {

using engine::Done;
using engine::Op;

Status Store::make(std::uint64_t offset, std::span<std::byte> memory) const {
  return call_back("Recipe::make", make_, offset, memory);
}

std::size_t Queue::submit(std::span<const Op> ops) {
  const std::size_t taken = std::min(ops.size(), ended_.size() - count_);
  for (const Op& op : ops.first(taken)) {
    Ended& ended = ended_[(first_ + count_++) % ended_.size()];
    ended.done = {.cookie = op.cookie, .route = Route::made};
    if (op.kind == engine::OpKind::call) {
      op.call->run();
      continue;
    }
    if (op.kind != engine::OpKind::read) {
      ended.done.code = Code::read_only;
      continue;
    }
    const auto& store = *static_cast<const Store*>(op.store);
    const std::uint64_t left = store.info().size_bytes - std::min(op.offset, store.info().size_bytes);
    const std::uint64_t length = std::min(op.length, left);
    Status made = store.make(op.offset, {op.memory, length});
    if (made) {
      ended.done.bytes = length;
      continue;
    }
    ended.cause = std::move(made).error();
    ended.done.code = ended.cause.code == Code::ok ? Code::internal : ended.cause.code;
    ended.done.system_error = ended.cause.system_error;
    ended.done.cause = &ended.cause;
  }
  return taken;
}

std::size_t Queue::poll(std::span<Done> done, TimePoint deadline) {
  const std::size_t found = std::min(done.size(), count_);
  for (std::size_t i = 0; i < found; ++i) done[i] = ended_[(first_ + i) % ended_.size()].done;
  first_ = (first_ + found) % ended_.size();
  count_ -= found;
  if (found > 0) return found;
  std::unique_lock lock(mutex_);
  if (Clock::now() < deadline) woken_changed_.wait_until(lock, deadline, [this] { return woken_; });
  woken_ = false;
  return 0;
}

void Queue::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  woken_changed_.notify_one();
}

}  // namespace penstock::made
