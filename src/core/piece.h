// Piece: part of a range on its way between a store and memory: at most one Op at a time. Pieces: all that a lane can
// have on their way, by a number; a cookie names the number and who has it, so that what comes back late finds nobody.
//
// Thread safety: the lane's. Lifetime: its lane's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "core/block_locks.h"
#include "core/held_memory.h"
#include "core/memory_map.h"
#include "core/planner.h"
#include "core/staging.h"
#include "cuda/control_memory.h"
#include "engine/op.h"

namespace penstock::cuda {
class Device;
}

namespace penstock::core {

class Flow;
struct Part;
class StoreEntry;

// How the bytes of a piece are made of what is stored.
struct Making {
  Making() = default;
  ~Making() {
    if (status.host != nullptr) cuda::ControlMemory::of_process().give_back(status);
    if (room.arena != nullptr) room.arena->give_back(room);
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

  const Stored* stored = nullptr;              // the request's, which may be gone when an orphan comes home
  std::shared_ptr<const Transform> transform;  // shared: kernels of an orphan may use what it has
  StagingArena::Block room;                    // beside that of the piece, where `made` had none from the beginning
  std::byte* made = nullptr;                   // by the CPU for a GPU: in staging memory
  bool by_gpu = false;                         // by its kernels
  std::byte* scratch = nullptr;                // of the GPU, to copy to first; null: they read staging memory
  const std::byte* seen_at = nullptr;          // what is stored, by them
  cuda::ControlMemory::Cell status;            // that they write to
  std::optional<Error> failure;                // why there are none
};

struct Piece {
  enum class Phase : std::uint8_t {
    transfer,     // the one and only operation of a piece, or its continuation
    lock_block,   // waits for another writer of the block
    read_block,   // reads the block around an edge
    write_block,  // writes it back
    flush,
  };
  enum class Where : std::uint8_t {
    here,     // nobody else has it
    queue,    // given to the engine and not yet back
    copying,  // between staging memory and the GPU's
  };

  Part* part = nullptr;         // null: free, or an orphan
  StoreEntry* entry = nullptr;  // that serves it
  cuda::Device* gpu = nullptr;  // whose memory `user` is; null: the host's
  std::byte* user = nullptr;    // the caller's memory: `memory_bytes`
  std::uint64_t offset = 0;
  std::uint64_t length = 0;        // in the store
  std::uint64_t memory_bytes = 0;  // the same, but for what is transformed
  Flow* flow = nullptr;            // of its store; null: it goes through the page cache
  std::uint64_t flow_bytes = 0;    // what it takes of that, or of what may go through the page cache
  std::uint64_t lead = 0;          // bytes of the operation before `offset`
  std::uint64_t moved = 0;         // bytes of the operation that are there, from its start
  std::uint64_t span_bytes = 0;    // of the whole operation: lead, length and what alignment adds
  RouteBytes routes{};             // of the piece's own bytes
  Route main_route{};              // that most of them took
  StagingArena::Block staging;
  engine::Loan* loan = nullptr;    // which a GPU copies from
  std::unique_ptr<Making> making;  // null: its bytes are stored as they are
  engine::Op op;                   // as given to the queue last
  TimePoint submitted;
  TimePoint retry_at;  // or, of an orphan: when it should be home
  // An orphan's: its store, what engines know of the memory that it may still touch, the Buffer that this lies in, if
  // it is one's, and how many bytes of any memory.
  std::shared_ptr<StoreEntry> kept;
  AttachmentUse attachment;  // goes before the memory
  HeldMemory::Holder held;
  BlockLocks::Block block;  // around an edge
  std::uint64_t quarantined_bytes = 0;
  std::uint32_t range = 0;
  Phase phase = Phase::transfer;
  Where where = Where::here;
  Reason reason = Reason::in_memory;
  std::uint8_t attempts = 0;
  bool is_out_of_reach = false;  // `user`, of the engine: it is filled and emptied through staging memory
  bool orphan = false;
  bool holds_block = false;  // `block`, in the store's BlockLocks
  bool fills_slot = false;   // of a GPU's bytes, from the page cache, while poll lasts

  bool is_staged() const { return staging.data != nullptr; }
  // What the store or a copy engine may touch now.
  const std::byte* touched() const { return where == Where::copying ? user : op.memory; }
};

class Pieces {
 public:
  explicit Pieces(std::uint32_t count) : places_(count) {
    free_.reserve(count);
    for (std::uint32_t i = count; i > 0; --i) free_.push_back(i - 1);
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(places_.size()); }
  bool has_free() const { return !free_.empty(); }
  std::uint32_t in_use() const { return size() - static_cast<std::uint32_t>(free_.size()); }
  Piece& operator[](std::uint32_t index) { return places_[index].piece; }
  const Piece& operator[](std::uint32_t index) const { return places_[index].piece; }

  // REQUIRES: has_free().
  std::uint32_t take() {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give_back(std::uint32_t index) {
    ++places_[index].generation;
    std::destroy_at(&places_[index].piece);  // a third of what assigning takes
    std::construct_at(&places_[index].piece);
    free_.push_back(index);
  }

  std::uint64_t cookie_of(std::uint32_t index) const { return std::uint64_t{places_[index].generation} << 32 | index; }
  static std::uint32_t index_of(std::uint64_t cookie) { return static_cast<std::uint32_t>(cookie); }
  // Nothing for a cookie that names none, or one that was given back since.
  std::optional<std::uint32_t> find(std::uint64_t cookie) const {
    const std::uint32_t index = index_of(cookie);
    if (index >= size() || cookie_of(index) != cookie) return std::nullopt;
    return index;
  }

 private:
  struct Place {
    Piece piece;
    std::uint32_t generation = 0;
  };
  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;
};

}  // namespace penstock::core
