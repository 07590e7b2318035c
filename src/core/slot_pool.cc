#include "core/slot_pool.h"

#include <algorithm>

#include "base/log.h"
#include "core/cut.h"

namespace penstock::core {

namespace {

constexpr std::size_t share_of_budget = 8;
constexpr std::size_t arena_bytes_max = 132 * SlotPool::granule_bytes;

std::size_t whole_granules(std::size_t bytes) {
  return align_up(bytes, SlotPool::granule_bytes);
}

}  // namespace

SlotPool::SlotPool(std::shared_ptr<memory::Budget> budget, std::uint64_t reserve_bytes)
    : budget_(std::move(budget)),
      reserve_bytes_(reserve_bytes),
      bytes_max_(align_down(budget_->limit_bytes() / share_of_budget, granule_bytes)) {}

SlotPool::Slots SlotPool::take(cuda::Device& gpu, const Wish& wish, TimePoint until) {
  std::unique_lock lock(mutex_);
  while (true) {
    const Share share = share_of(wish);
    Slots slots{.bytes = share.bytes, .blocks = {}};
    slots.blocks.reserve(share.count);
    while (true) {
      while (slots.blocks.size() < share.count && take_slot(slots)) {
      }
      if (slots.blocks.size() == share.count) return slots;
      const std::size_t known = arenas_.size();
      lock.unlock();
      const bool has_grown = grow(gpu, share.bytes, known);
      lock.lock();
      if (!has_grown) break;
    }
    // Without any in use, none will become free.
    if (!slots.blocks.empty() || used_bytes_ == 0) return slots;
    if (changed_.wait_until(lock, until) == std::cv_status::timeout) return {};
  }
}

SlotPool::Share SlotPool::share_of(const Wish& wish) const {
  const std::size_t least = whole_granules(wish.least_bytes);
  const std::size_t most = std::max(granule_bytes, (bytes_max_ - used_bytes_) / 4);
  Share share{.count = wish.count, .bytes = std::max(least, whole_granules(wish.bytes))};
  while (share.count * share.bytes > most && (share.count > 2 || share.bytes > least)) {
    if (share.bytes > least) {
      share.bytes = std::max(least, whole_granules(share.bytes / 2));
    } else {
      --share.count;
    }
  }
  return share;
}

bool SlotPool::take_slot(Slots& slots) {
  for (const auto& arena : arenas_) {
    const auto block = arena->take(slots.bytes);
    if (!block) continue;
    used_bytes_ += slots.bytes;
    slots.blocks.push_back(*block);
    return true;
  }
  return false;
}

bool SlotPool::grow(cuda::Device& gpu, std::size_t least_bytes, std::size_t known) {
  const std::scoped_lock growing(growing_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    if (arenas_.size() != known) return true;
    arenas_.reserve(known + 1);
  }
  auto arena = make_arena(gpu, least_bytes);
  if (arena == nullptr) return false;
  const std::scoped_lock lock(mutex_);
  arenas_.push_back(std::move(arena));
  return true;
}

// Memory that CUDA does not know can't be copied later: the driver would read it at once.
std::unique_ptr<StagingArena> SlotPool::make_arena(cuda::Device& gpu, std::size_t least_bytes) {
  const std::size_t bytes = std::min(std::max(least_bytes, arena_bytes_max), bytes_max_ - made_bytes_);
  if (bytes < least_bytes || budget_->used_bytes() + bytes + reserve_bytes_ > budget_->limit_bytes()) return nullptr;
  auto allocation = memory::Allocation::create({.domain = Domain::host(), .size_bytes = bytes, .budget = budget_});
  if (!allocation) return nullptr;
  if (const Status known = (*allocation)->register_with(gpu); !known) {
    log(LogLevel::warning, known.error().message + "; requests in stream order take the way of others");
    return nullptr;
  }
  auto arena = std::make_unique<StagingArena>(std::move(*allocation));
  made_bytes_ += bytes;
  return arena;
}

void SlotPool::give_back(const Slots& slots) {
  const std::scoped_lock lock(mutex_);
  for (const StagingArena::Block& block : slots.blocks) {
    block.arena->give_back(block);
    used_bytes_ -= slots.bytes;
  }
  changed_.notify_all();
}

}  // namespace penstock::core
