// Statistics: what a Context has moved, by engine and route.
//
// Thread safety: a snapshot is a value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/result.h"
#include "penstock/route.h"

namespace penstock {

struct RouteStatistics {
  std::string engine;
  Route route = Route::buffered;
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;  // completed
  std::uint64_t failed = 0;
  double latency_average_seconds = 0;
  double latency_p50_seconds = 0;
  double latency_p99_seconds = 0;
  double latency_p999_seconds = 0;
  double bandwidth_peak = 0;       // bytes a second, the best tenth of a second
  double bandwidth_effective = 0;  // bytes a second, over the time in which this route had work
};

struct PENSTOCK_EXPORT Statistics {
  double seconds = 0;                   // since the Context was made or the statistics were reset
  std::vector<RouteStatistics> routes;  // those that were used
  std::uint64_t requests = 0;           // that ended
  std::uint64_t requests_failed = 0;    // failed, cancelled or abandoned
  std::uint64_t stored_bytes = 0;       // read to make others of them: packed tensors (Range::stored)
  std::uint64_t made_bytes = 0;         // those that were made of them
  std::uint64_t pinned_bytes = 0;       // of the budget, now
  std::uint64_t lanes_replaced = 0;
  std::uint64_t quarantined_bytes = 0;  // memory that abandoned operations may still touch, now
  // In the process now: freed GPU and pinned memory that must wait until a GPU has finished its work.
  std::uint64_t unfreed_calls = 0;
  std::uint64_t unfreed_pinned_bytes = 0;
  std::uint64_t unfreed_device_bytes = 0;
  std::uint64_t operations_in_flight = 0;  // that engines have, now
  std::uint64_t bytes_in_flight = 0;       // of those

  std::string to_json(int indent = -1) const;
  // Code::invalid_argument for anything that to_json does not write.
  static Result<Statistics> from_json(std::string_view text);
};

}  // namespace penstock
