// StagingArena: a lane's staging memory, cut into granules. Transfers whose offsets, sizes or addresses the device
// can't take go through it. LaneStaging: the arena, made when it is first needed, and what engines know it by.
//
// Thread safety: its lane's, but for LaneStaging::get. Lifetime: its lane's, which is leaked rather than ended while
// operations may touch it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
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

class LaneStaging {
 public:
  LaneStaging(std::uint64_t size_bytes, std::shared_ptr<memory::Budget> budget, const engine::Table& engines)
      : size_bytes_(size_bytes), budget_(std::move(budget)), engines_(engines), keys_(engines.size()) {}

  // Made now, if the budget has room for it. Any thread.
  Result<StagingArena*> get();
  // For one piece that takes so many bytes of it.
  Result<StagingArena*> get_for(std::uint64_t bytes);
  // REQUIRES: a block of it.
  void give_back(const StagingArena::Block& block) { arena_->give_back(block); }
  // What the engine knows it by. REQUIRES: it was made.
  engine::MemoryKey key_for(std::size_t engine);
  // Before the queues go, and after that.
  void detach();
  void clear();

 private:
  const std::uint64_t size_bytes_;
  const std::shared_ptr<memory::Budget> budget_;  // shared by all of the Context
  const engine::Table& engines_;
  std::mutex mutex_;  // held while it is made
  std::unique_ptr<StagingArena> arena_;
  std::atomic<StagingArena*> made_{nullptr};  // the same, once it is there
  TimePoint warned_;
  std::vector<std::optional<engine::MemoryKey>> keys_;  // by engine
};

}  // namespace penstock::core
