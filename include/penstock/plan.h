// Plan: how bytes would travel between a store and memory, and why, before any of them moves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/domain.h"
#include "penstock/region.h"
#include "penstock/request.h"
#include "penstock/route.h"
#include "penstock/store.h"

namespace penstock {

// How bytes in one state travel.
struct PlannedRoute {
  std::string bytes;           // which: "in the page cache"
  std::optional<Route> route;  // nothing: no allowed route can carry them
  std::string reason;
};

struct PENSTOCK_EXPORT Plan {
  Direction direction = Direction::read;
  Domain domain;
  std::string engine;
  std::string engine_reason;
  std::string device_engine;  // reaches GPU memory itself; empty: none, or no GPU
  std::string device_reason;  // why, or why none does
  std::vector<PlannedRoute> routes;
  std::uint64_t alignment_bytes = 1;          // of transfers past the page cache
  std::uint64_t operation_bytes = 0;          // the longest there, as far as learnt from the store
  std::uint64_t in_flight_bytes = 0;          // the most there, likewise
  std::uint32_t lanes = 0;                    // that may work on a request
  std::uint64_t staging_bytes_of_a_lane = 0;  // for what is staged

  // All of it in words, line by line.
  std::string text() const;
};

// Whether a range can travel past the page cache as it is: `StoreInfo::alignments`, its offset in the store, its
// memory. Any other range is staged, which costs a copy.
inline bool is_aligned(const Alignments& alignments, std::uint64_t offset, const Region& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data);
  return (offset | memory.size_bytes) % alignments.offset == 0 && address % alignments.memory == 0;
}

}  // namespace penstock
