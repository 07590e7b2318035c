// StagingArena: a lane's staging memory, cut into granules. Transfers whose offsets, sizes or addresses the device
// can't take go through it.
//
// Thread safety: its lane's. Lifetime: its lane's, which is leaked rather than ended while operations may touch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "memory/allocation.h"

namespace penstock::core {

class StagingArena {
 public:
  static constexpr std::size_t granule_bytes = 64 << 10;

  explicit StagingArena(std::unique_ptr<memory::Allocation> allocation);

  struct Block {
    std::byte* data = nullptr;
    std::uint32_t first = 0;  // granule
    std::uint32_t count = 0;
  };
  // Nothing: come back when something was released.
  std::optional<Block> take(std::size_t bytes);
  void give_back(const Block& block);

  Region region() const { return allocation_->region(); }
  Status register_with(cuda::Device& gpu) { return allocation_->register_with(gpu); }
  std::optional<std::ptrdiff_t> host_to_device() const { return allocation_->host_to_device(); }
  std::size_t largest_bytes() const { return used_.size() * granule_bytes; }

 private:
  std::unique_ptr<memory::Allocation> allocation_;
  std::vector<bool> used_;
  // Where searches begin: what was freed last is used first, because processors still have it in their caches.
  std::uint32_t next_ = 0;
};

}  // namespace penstock::core
