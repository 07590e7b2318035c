// Plan: how bytes would travel between a store and memory, and why, before any of them moves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/domain.h"
#include "penstock/request.h"
#include "penstock/route.h"

namespace penstock {

// The way of bytes in one state.
struct PlannedRoute {
  std::string bytes;           // which: "in the page cache"
  std::optional<Route> route;  // nothing: no route that is allowed can carry them
  std::string reason;
};

struct PENSTOCK_EXPORT Plan {
  Direction direction = Direction::read;
  Domain domain;
  std::string engine;
  std::string engine_reason;
  std::string device_engine;  // that reaches GPU memory by itself; empty: none, or no GPU
  std::string device_reason;  // why, or why none does
  std::vector<PlannedRoute> routes;
  std::uint64_t alignment_bytes = 1;          // of what goes past the page cache
  std::uint64_t operation_bytes = 0;          // the longest there, by what was learnt of the store so far
  std::uint64_t in_flight_bytes = 0;          // the most there, likewise
  std::uint32_t lanes = 0;                    // that may work on a request
  std::uint64_t staging_bytes_of_a_lane = 0;  // for what is staged

  // The whole of it, a line each.
  std::string text() const;
};

}  // namespace penstock
