#include "nvme/ram_backend.h"

#include <algorithm>
#include <cstring>

namespace penstock::nvme {

bool RamBackend::submit(const BlockOp& op) {
  if (done_count_ == depth) return false;
  const bool inside = op.offset <= bytes_.size() && op.length <= bytes_.size() - op.offset;
  std::byte* const at = bytes_.data() + (inside ? op.offset : 0);
  if (inside && op.kind == BlockKind::read) std::memcpy(op.memory, at, op.length);
  if (inside && op.kind == BlockKind::write) std::memcpy(at, op.memory, op.length);
  if (inside && (op.kind == BlockKind::zero || op.kind == BlockKind::deallocate)) std::memset(at, 0, op.length);
  done_[done_count_++] = {op.cookie, inside};
  return true;
}

std::size_t RamBackend::poll(std::span<BlockDone> done, TimePoint deadline) {
  const std::size_t count = std::min(done.size(), done_count_);
  if (count == 0 && deadline > Clock::now()) {
    std::unique_lock lock(mutex_);
    woken_changed_.wait_until(lock, deadline, [this] { return woken_; });
    woken_ = false;
    return 0;
  }
  std::copy_n(done_.begin(), count, done.begin());
  std::copy(done_.begin() + static_cast<std::ptrdiff_t>(count),
            done_.begin() + static_cast<std::ptrdiff_t>(done_count_), done_.begin());
  done_count_ -= count;
  return count;
}

void RamBackend::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  woken_changed_.notify_one();
}

}  // namespace penstock::nvme
