// Measuring: how fast each route to a store is, beside plain reads, writes and copies on this machine.
//
// Everything is a race: in each round the yardstick and all contenders take turns on the same bytes. The result is the
// median of the rounds' ratios. docs/benchmarks.md explains the method.
//
// Thread safety: a function without state. It uses all CPUs, and the page cache. Lifetime: values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/options.h"
#include "penstock/region.h"
#include "penstock/request.h"
#include "penstock/store.h"

namespace penstock {

// The same figure from several rounds.
struct PENSTOCK_EXPORT Series {
  std::vector<double> rounds;  // in order
  double median = 0, p25 = 0, p75 = 0;
  double spread = 0;  // (largest - smallest) / median

  static Series of(std::vector<double> rounds);
};
// If a yardstick's own rounds differ by more than this, it does not count.
inline constexpr double conclusive_spread = 0.05;

enum class RaceState : std::uint8_t {
  cached,   // all bytes are in the page cache, verified before each load
  cold,     // none of them is, likewise
  written,  // written and synced, over reserved room
  rows,     // random rows of 256 bytes, all of them in the page cache
};
PENSTOCK_EXPORT std::string_view race_state_name(RaceState state);

struct RaceRow {
  std::string name;     // "uring, auto", "plain direct reads"
  std::string setting;  // of plain reads and writes: "16 threads, 1 MiB"
  bool plain = false;   // done without Penstock
  Series bytes_per_second;
  Series ratio;  // to the yardstick of the same round
  double cpu_seconds_per_gigabyte = 0;
  std::uint64_t pinned_bytes = 0;  // by Penstock's count
  std::uint64_t memory_bytes = 0;  // how much the process grew for it, beside the destination
  RouteBytes routes{};             // of one load
  std::string reason;              // why that way
  bool bytes_right = true;         // of a load beside the rounds: all of them compared
};
struct LeftOut {
  std::string name, reason;
};
struct Race {
  RaceState state = RaceState::cached;
  std::string refused;        // why there was no race; then everything else is empty
  std::vector<RaceRow> rows;  // the first is the yardstick
  std::vector<LeftOut> left_out;
  bool conclusive = false;
};

// Random reads of one block, at a given depth.
struct LatencyPoint {
  std::uint32_t depth = 1;
  std::uint64_t operations = 0;
  Series operations_per_second;
  double p50_seconds = 0;
  std::optional<double> p99_seconds, p999_seconds;  // nothing if there were too few reads
  bool conclusive = false;                          // judged by the yardstick's rounds at this depth
};
struct LatencyCurve {
  std::string name;
  bool plain = false;
  std::vector<LatencyPoint> points;
};
struct LatencyRace {
  std::string refused;
  bool direct = false;  // past the page cache; else out of it
  std::uint32_t block_bytes = 4096;
  std::vector<LatencyCurve> curves;  // the first is the yardstick
};

struct MeasuringJob {
  std::string path;  // not a URI; only read
  Domain memory;
  std::uint64_t size_bytes = 1 << 30;  // at most this much of it; less if the store is slow
  double seconds = 30;                 // roughly
  std::string write_path;              // a file that may be overwritten; empty: writes are not measured
  std::function<bool()> keep_going;    // asked ten times a second; false ends it all with Code::cancelled
  std::function<void(const std::string& what)> on_step;
};
struct Measured {
  StoreInfo store;
  std::uint64_t size_bytes = 0;  // of each load
  double seconds = 0;
  std::vector<Race> races;  // cached, cold, rows and, on request, written
  LatencyRace latency;
};
PENSTOCK_EXPORT Result<Measured> measure(const MeasuringJob& job);

}  // namespace penstock
