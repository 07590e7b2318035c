// Registry: the slots that stores and attached memory have in the fixed tables of every ring of an engine.
//
// A slot belongs to a store or to memory for as long as that lives; its registration, a number that is never used
// again, tells one owner of a slot from the next. Each ring enters a slot into its own table when it first meets the
// owner; when the owner goes, the registry clears the slot on every ring.
//
// Thread safety: every call from any thread; `find` takes no lock. Lifetime: outlives its stores, memory and rings.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fork_guard.h"
#include "engine/memory.h"

namespace penstock::uring {

inline constexpr std::uint32_t store_slots = 512;  // each is two entries of the file table: buffered, direct
inline constexpr std::uint32_t buffer_slots = 1024;
// The kernel's limit on one fixed buffer; larger memory takes several slots in a row.
inline constexpr std::uint64_t piece_bytes = 1 << 30;

struct Slot {
  std::uint32_t index = 0;
  std::uint64_t registration = 0;  // 0: no slot
};

// Memory of one slot.
struct Piece {
  Slot slot;
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
};

// What one ring has in a fixed table, so that a slot that is already there costs a load and no call.
class FixedTable {
 public:
  FixedTable(std::uint32_t slots, bool available) : entries_(slots), available_(available) {}

  // Whether the slot can be used on this ring; the first time, `enter` (returning success) puts it there. A failure is
  // remembered for as long as the slot has the same owner.
  template <typename Enter>
  bool ensure(Slot slot, Enter enter) {
    if (!available_ || slot.registration == 0) return false;
    const std::uint64_t entry = entries_[slot.index].load(std::memory_order_acquire);
    if (entry >> 1 == slot.registration) return (entry & 1) != 0;
    const bool entered = enter();
    entries_[slot.index].store(slot.registration << 1 | static_cast<std::uint64_t>(entered), std::memory_order_release);
    return entered;
  }
  // Says whether the slot was in use on this ring and must be cleared.
  bool forget(std::uint32_t index) { return (entries_[index].exchange(0, std::memory_order_acq_rel) & 1) != 0; }

 private:
  std::vector<std::atomic<std::uint64_t>> entries_;
  const bool available_;
};

// A ring, as the registry sees it.
class Registered {
 public:
  virtual ~Registered() = default;
  virtual void forget_store(std::uint32_t index) = 0;
  virtual void forget_buffer(std::uint32_t index) = 0;
};

// Memory that has slots, one for each piece_bytes of it.
class AttachedMemory;

class Registry : public engine::Memory {
 public:
  void join(Registered& ring);
  void leave(Registered& ring);

  // Without a registration when all slots are taken; everything works without one, only slower.
  Slot add_store();
  void remove_store(Slot slot);
  Result<std::unique_ptr<engine::Attached>> attach(Region memory) override;
  void remove(const AttachedMemory& memory);

 private:
  // A forked child has the descriptors of its parent's rings: it must not clear what the parent goes on using.
  bool in_child() const { return fork_guard_.in_child(); }

  const ForkGuard fork_guard_;
  std::mutex mutex_;  // guards what follows
  std::vector<Registered*> rings_;
  std::uint64_t next_registration_ = 1;
  std::array<bool, store_slots> store_taken_{};
  std::array<bool, buffer_slots> buffer_taken_{};
};

class AttachedMemory : public engine::Attached {
 public:
  AttachedMemory(Registry& registry, Region memory, Slot first) : registry_(registry), memory_(memory), first_(first) {}
  ~AttachedMemory() override { registry_.remove(*this); }

  std::uint32_t first_slot() const { return first_.index; }
  static std::uint32_t slots_for(std::uint64_t size_bytes) {
    return static_cast<std::uint32_t>((size_bytes + piece_bytes - 1) / piece_bytes);
  }
  std::uint32_t slots() const { return slots_for(memory_.size_bytes); }
  // The piece that holds all of [data, data + length); nothing if there is none.
  std::optional<Piece> find(const std::byte* data, std::uint64_t length) const;

 private:
  Registry& registry_;
  const Region memory_;
  const Slot first_;
};

}  // namespace penstock::uring
