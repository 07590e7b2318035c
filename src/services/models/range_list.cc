#include "services/models/range_list.h"

#include <algorithm>

namespace penstock::models {
namespace {

// Of stored bytes for the host: a lane decodes while others read, and what it has just read is still in its cache.
constexpr std::uint64_t host_run_bytes = 1 << 20;

packed::RunLimits limits_for(const Region& memory, const Options& options) {
  const std::uint64_t slot = options.staging_slot_bytes;
  if (memory.domain.host_accessible()) return {.stored_bytes = std::min(slot, host_run_bytes)};
  // Where the CPU has to decode for a GPU, the decoded bytes go through staging too.
  return {.stored_bytes = slot, .bytes = slot * options.staging_slots_per_lane / 2};
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
       unpack.runs(piece.packed.begin, piece.memory.size_bytes, limits_for(piece.memory, options_))) {
    stored_.push_back({.transform = piece.packed.tensor, .bytes = run.stored_bytes, .tag = piece.packed.begin + done});
    ranges_.push_back({&store, unpack.place() + run.offset, piece.memory.part(done, run.bytes), &stored_.back()});
    done += run.bytes;
  }
}

}  // namespace penstock::models
