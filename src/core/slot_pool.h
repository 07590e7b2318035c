// SlotPool: pinned memory of a Context for requests whose copies stand on their caller's stream (OrderedTransfer). Each
// has its slots for itself, so a stream that waits for the program holds up no other request.
//
// Memory is taken when it is needed, up to a limit, and stays. A request gets at most a quarter of what is left, in
// fewer and shorter slots if need be: so the pool serves many requests before it is empty.
//
// Thread safety: any thread. Lifetime: shared by its requests: a stream may still copy from a slot when the Context is
// gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "core/staging.h"
#include "cuda/driver.h"
#include "memory/budget.h"

namespace penstock::core {

class SlotPool {
 public:
  static constexpr std::size_t granule_bytes = StagingArena::granule_bytes;

  struct Wish {
    std::size_t count = 1;
    std::size_t bytes = granule_bytes;        // of each
    std::size_t least_bytes = granule_bytes;  // of each, if there is less room
  };
  struct Slots {
    std::size_t bytes = 0;  // of each
    std::vector<StagingArena::Block> blocks;
    bool empty() const { return blocks.empty(); }
  };

  // Takes no memory of the budget unless `reserve_bytes` of it are left afterwards.
  SlotPool(std::shared_ptr<memory::Budget> budget, std::uint64_t reserve_bytes);

  // None where none become free in time, or none can be made.
  Slots take(cuda::Device& gpu, const Wish& wish, TimePoint until);
  void give_back(const Slots& slots);

 private:
  struct Share {
    std::size_t count = 1;
    std::size_t bytes = 0;  // of each
  };
  // REQUIRES: mutex_ is held, for both.
  Share share_of(const Wish& wish) const;
  bool take_slot(Slots& slots);
  // Whether there is another arena than those that were known.
  bool grow(cuda::Device& gpu, std::size_t least_bytes, std::size_t known);
  std::unique_ptr<StagingArena> make_arena(cuda::Device& gpu, std::size_t least_bytes);

  const std::shared_ptr<memory::Budget> budget_;
  const std::uint64_t reserve_bytes_;
  const std::size_t bytes_max_;
  // Held while the driver registers memory. It may wait for a stream that goes on only when slots were given back, so
  // that never waits for this one.
  std::mutex growing_mutex_;
  std::size_t made_bytes_ = 0;  // guarded by it
  std::mutex mutex_;            // guards what follows
  std::condition_variable changed_;
  std::vector<std::unique_ptr<StagingArena>> arenas_;
  std::size_t used_bytes_ = 0;
};

}  // namespace penstock::core
