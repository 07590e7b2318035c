// How the ranges of a request are cut into chunks that each fit a slot of pinned memory (OrderedTransfer). A pure
// function.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/spans.h"

namespace penstock::core {

// Part of a range, and its place in the slot.
struct Slice {
  std::uint32_t span = 0;
  std::uint64_t position = 0;  // within the range
  std::uint64_t length = 0;
  std::uint64_t at = 0;  // within the slot
};

struct OrderedChunks {
  struct Chunk {
    std::uint32_t first = 0;  // slice
    std::uint32_t count = 0;  // of slices
    std::uint64_t bytes = 0;
  };
  std::vector<Slice> slices;
  std::vector<Chunk> chunks;
};

// Long ranges are cut where the offset in the store is a multiple of a large power of two, and lie in the slot as they
// lie in the store, modulo 4096, so that direct operations take them as they are. Short ones are packed together. What
// is transformed is not cut. Nothing if that does not fit a slot. REQUIRES: slots of at least 64 KiB, whose addresses
// are multiples of 4096.
std::optional<OrderedChunks> cut_into_chunks(std::span<const Span> spans, std::uint64_t slot_bytes);

}  // namespace penstock::core
