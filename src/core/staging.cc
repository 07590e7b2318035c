#include "core/staging.h"

#include <algorithm>

namespace penstock::core {

StagingArena::StagingArena(std::unique_ptr<memory::Allocation> allocation)
    : allocation_(std::move(allocation)), used_(allocation_->region().size_bytes / granule_bytes, false) {}

std::optional<StagingArena::Block> StagingArena::take(std::size_t bytes) {
  const auto total = static_cast<std::uint32_t>(used_.size());
  const auto wanted = static_cast<std::uint32_t>((bytes + granule_bytes - 1) / granule_bytes);
  if (wanted == 0 || wanted > total) return std::nullopt;
  std::uint32_t run = 0;
  // Twice around, less one: a run may begin anywhere but does not wrap.
  for (std::uint32_t step = 0; step < total + wanted; ++step) {
    const std::uint32_t at = (next_ + step) % total;
    if (at == 0) run = 0;
    run = used_[at] ? 0 : run + 1;
    if (run < wanted) continue;
    const std::uint32_t first = at + 1 - wanted;
    for (std::uint32_t i = first; i <= at; ++i) used_[i] = true;
    next_ = (at + 1) % total;
    return Block{region().data + first * granule_bytes, first, wanted};
  }
  return std::nullopt;
}

void StagingArena::give_back(const Block& block) {
  for (std::uint32_t i = block.first; i < block.first + block.count; ++i) used_[i] = false;
  next_ = std::min(next_, block.first);
}

}  // namespace penstock::core
