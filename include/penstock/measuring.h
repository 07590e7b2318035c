// Measuring: how fast the ways to a store are, beside what plain reads, writes and copies reach on this machine.
//
// Everything is a race: the yardstick and all contenders take turns in each round, on the same bytes, and what counts
// is the median of the ratios of the rounds. docs/benchmarks.md explains the method.
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
  std::vector<double> rounds;  // in the order they were made
  double median = 0, p25 = 0, p75 = 0;
  double spread = 0;  // (largest - smallest) / median

  static Series of(std::vector<double> rounds);
};
// A yardstick whose own rounds differ by more is none.
inline constexpr double conclusive_spread = 0.05;

enum class RaceState : std::uint8_t {
  cached,   // all bytes in the page cache, which is verified before each load
  cold,     // none of them, likewise
  written,  // written and synced, over room that was reserved before
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
  std::uint64_t memory_bytes = 0;  // by how much the process grew for it, beside the destination
  RouteBytes routes{};             // of one load
  std::string reason;              // why that way
  bool bytes_right = true;         // of a load beside the rounds: all of them compared
};
struct LeftOut {
  std::string name, reason;
};
struct Race {
  RaceState state = RaceState::cached;
  std::string refused;        // why there was no race; then all else is empty
  std::vector<RaceRow> rows;  // the first is the yardstick
  std::vector<LeftOut> left_out;
  bool conclusive = false;
};

// Random reads of one block, with so many under way at a time.
struct LatencyPoint {
  std::uint32_t depth = 1;
  std::uint64_t operations = 0;
  Series operations_per_second;
  double p50_seconds = 0;
  std::optional<double> p99_seconds, p999_seconds;  // nothing where there were too few to tell
  bool conclusive = false;                          // as the yardstick's rounds at this depth say
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
  std::string path;  // no URI; only ever read
  Domain memory;
  std::uint64_t size_bytes = 1 << 30;  // of it, at most; less where the store is slow
  double seconds = 30;                 // about
  std::string write_path;              // a file that may be overwritten; empty: writes are not measured
  std::function<bool()> keep_going;    // asked ten times a second; false ends it all with Code::cancelled
  std::function<void(const std::string& what)> on_step;
};
struct Measured {
  StoreInfo store;
  std::uint64_t size_bytes = 0;  // that each load brought
  double seconds = 0;
  std::vector<Race> races;  // cached, cold and, if asked for, written
  LatencyRace latency;
};
PENSTOCK_EXPORT Result<Measured> measure(const MeasuringJob& job);

}  // namespace penstock
