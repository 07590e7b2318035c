#include "services/models/range_list.h"

#include <algorithm>

namespace penstock::models {
namespace {

// Of stored bytes for the host: a lane decodes while others read, and what it has just read is still in its cache.
constexpr std::uint64_t host_run_bytes = 1 << 20;
// Of those that a disk brings to a GPU: a lane's share of what is in flight is several of them, so some are read while
// one is copied and decoded. Whole slots took a quarter longer.
constexpr std::uint64_t disk_run_bytes = 512 << 10;
// As much as tells what a tensor is like.
constexpr std::uint64_t sampled_bytes = 1 << 20;

// A guess: wrong, it costs speed alone.
bool is_at_hand(const Store& store, std::uint64_t offset, std::uint64_t bytes) {
  if (store.info().locality == Locality::memory) return true;
  const std::uint64_t length = std::min(bytes, sampled_bytes);
  return store.cached_bytes(offset, length).value_or(0) >= length / 2;
}

packed::RunLimits limits_for(const Store& store, const FilePiece& piece, const Options& options) {
  const std::uint64_t slot = options.staging_slot_bytes;
  if (piece.memory.domain.host_accessible()) return {.stored_bytes = std::min(slot, host_run_bytes)};
  const packed::Unpack& unpack = *piece.packed.tensor;
  const packed::TensorIndex& index = unpack.index();
  const std::uint64_t begin = index.offset(piece.packed.begin / unpack.chunk_bytes());
  const bool at_hand = is_at_hand(store, unpack.place() + begin, index.bytes - begin);
  // A copy engine is at its best from a whole slot at a time. Where the CPU has to decode for a GPU, the decoded bytes
  // go through staging too.
  return {.stored_bytes = at_hand ? slot : std::min(slot, disk_run_bytes),
          .bytes = slot * options.staging_slots_per_lane / 2};
}

}  // namespace

void RangeList::add(const Store& store, const FilePiece& piece) {
  if (!piece.packed.tensor) {
    ranges_.push_back({&store, piece.offset, piece.memory});
    return;
  }
  const packed::Unpack& unpack = *piece.packed.tensor;
  std::uint64_t done = 0;
  for (const packed::ChunkRun& run :
       unpack.runs(piece.packed.begin, piece.memory.size_bytes, limits_for(store, piece, options_))) {
    stored_.push_back({.transform = piece.packed.tensor, .bytes = run.stored_bytes, .tag = piece.packed.begin + done});
    ranges_.push_back({&store, unpack.place() + run.offset, piece.memory.part(done, run.bytes), &stored_.back()});
    done += run.bytes;
  }
}

}  // namespace penstock::models
