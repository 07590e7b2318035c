// StagingArena: a lane's staging memory, cut into granules. Transfers whose offsets, sizes or addresses the device
// can't take go through it, and those of memory that an engine can't reach. LaneStaging: the arena, made when it is
// first needed, what engines know it by, and arenas in the memory of engines that reach no other. It is not locked: an
// engine that registers it, as uring does, pins it as far as the memlock limit allows.
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
#include "memory/given.h"

namespace penstock::core {

class StagingArena {
 public:
  static constexpr std::size_t granule_bytes = 64 << 10;

  explicit StagingArena(std::unique_ptr<memory::Allocation> allocation);

  struct Block {
    StagingArena* arena = nullptr;
    std::byte* data = nullptr;
    std::uint32_t first = 0;  // granule
    std::uint32_t count = 0;
  };
  // Nothing: come back when something was released.
  std::optional<Block> take(std::size_t bytes);
  void give_back(const Block& block);
  // The most that can be taken now.
  std::size_t room_bytes() const;

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
  LaneStaging(std::uint64_t size_bytes, std::shared_ptr<memory::Budget> budget,
              std::shared_ptr<const engine::Table> engines, std::shared_ptr<memory::Given> given = nullptr,
              std::uint64_t long_slots_bytes = 0)
      : size_bytes_(size_bytes),
        long_slots_bytes_(long_slots_bytes),
        budget_(std::move(budget)),
        engines_(std::move(engines)),
        given_(std::move(given)),
        of_engines_(engines_->size()) {}

  // The most that one piece can take now.
  std::uint64_t room_bytes() const { return arena_ != nullptr ? arena_->room_bytes() : size_bytes_; }
  // Made now, if the budget has room for it. Any thread.
  Result<StagingArena*> get();
  // For one piece that takes so many bytes of it, in memory that the engine's operations can name.
  Result<StagingArena*> get_for(std::size_t engine, std::uint64_t bytes) {
    StagingArena* const made = of_engines_[engine].arena;
    if (made != nullptr && bytes <= made->largest_bytes()) return made;
    return make_for(engine, bytes);
  }
  // Whether it is the arena that all engines share which reach it.
  bool is_shared(const StagingArena& arena) const { return &arena == made_.load(std::memory_order_relaxed); }
  // The lane's long slots, which no engine knows: made now, if the budget has room for them. The lane alone.
  Result<StagingArena*> long_slots();
  // For good, unless they are in use: their memory is wanted elsewhere.
  void give_up_long_slots(const Error& why);
  bool uses_long_slots() const { return long_slots_ && long_slots_->room_bytes() != long_slots_->largest_bytes(); }
  // Whether it has the same address for a GPU.
  bool is_at_one_address() const { return arena_ != nullptr && arena_->host_to_device().value_or(0) == 0; }
  // What to add to an address of it to get a GPU's, if one knows it.
  std::optional<std::ptrdiff_t> host_to_device() const {
    return arena_ != nullptr ? arena_->host_to_device() : std::nullopt;
  }
  // What the engine knows it by; null: it need not. REQUIRES: get_for(engine) was ok.
  const engine::Attached* attached_to(std::size_t engine) const { return of_engines_[engine].attached.get(); }
  // Before the queues go, and after that.
  void detach();
  void clear();

 private:
  struct OfEngine {
    bool is_known = false;                       // it was told of the memory
    std::shared_ptr<engine::Attached> attached;  // shared with `own`, which may be unknown to a GPU later only
    std::unique_ptr<StagingArena> own;           // of HostReach::own
    StagingArena* arena = nullptr;               // that its operations name; null: not known yet
  };
  Result<StagingArena*> make_for(std::size_t engine, std::uint64_t bytes);
  Result<StagingArena*> make_own(std::size_t engine);
  Status make_known(std::size_t engine);

  const std::uint64_t size_bytes_;
  std::uint64_t long_slots_bytes_;                      // 0: there shall be none
  const std::shared_ptr<memory::Budget> budget_;        // shared by all of the Context
  const std::shared_ptr<const engine::Table> engines_;  // shared: memory of an engine's own may go back late
  const std::shared_ptr<memory::Given> given_;          // shared by all lanes; null: each takes its own
  std::mutex mutex_;                                    // held while it is made
  std::unique_ptr<StagingArena> arena_;
  std::atomic<StagingArena*> made_{nullptr};  // the same, once it is there
  std::unique_ptr<StagingArena> long_slots_;
  TimePoint warned_;
  std::vector<OfEngine> of_engines_;  // by engine
};

}  // namespace penstock::core
