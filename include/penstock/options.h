// Options: everything about a Context that can be chosen. Zero means "let the machine decide"; `resolved` shows what
// it decided. JSON both ways; unknown keys and impossible values are refused with the name of the key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/machine.h"
#include "penstock/result.h"
#include "penstock/route.h"

namespace penstock {

enum class Cache : std::uint8_t {
  automatic,  // the fastest route; nothing is left behind in the page cache
  keep,       // leave what was read in the page cache
  bypass,     // never use the page cache where the store can do without
};
PENSTOCK_EXPORT std::string_view cache_name(Cache cache);

struct PENSTOCK_EXPORT Deadlines {
  double request_seconds = 0;         // a request ends by then; 0: no such limit
  double stall_seconds = 60;          // a request in which nothing completes, or a server, has so long; 0: for ever
  double cancel_grace_seconds = 0.1;  // how long a cancelled or late request waits for its operations to come home
  double stream_seconds = 5;  // copies that make no progress for so long while streams wait for us can't get past them
  double close_seconds = 5;   // how long closing a Context or a store waits before it leaves behind what is stuck

  friend bool operator==(const Deadlines&, const Deadlines&) = default;
};

struct PENSTOCK_EXPORT Options {
  std::vector<Route> allowed_routes;  // empty: all but cufile_compat and cufile_unknown
  std::string engine;                 // empty: the planner chooses; PENSTOCK_ENGINE overrides
  std::vector<std::string> modules;   // paths of engines to load that are not in the library
  Cache cache = Cache::automatic;
  std::uint32_t lanes = 0;                       // 0: usable CPUs, at most 16
  std::uint32_t operations_in_flight = 64;       // per lane
  std::uint32_t operations_in_flight_total = 0;  // over all lanes, which share it equally; 0: no such limit
  std::uint64_t bytes_in_flight = 512 << 20;     // past the page cache, of one device, over all lanes
  std::uint64_t storage_chunk_bytes = 1 << 20;   // a usual storage operation
  std::uint64_t staging_slot_bytes = 4 << 20;
  std::uint32_t staging_slots_per_lane = 3;
  // Memory that lanes stage in instead of their own: a memfd that other processes may map too. -1: none. Not in JSON,
  // and not needed any more once the Context is there.
  int staging_descriptor = -1;
  std::uint64_t prefetch_window_bytes = 64 << 20;  // the most that one prefetch call starts
  std::uint64_t alignment_bytes = 0;               // for direct transfers; 0: asked of the store
  std::uint64_t pinned_budget_bytes =
      256 << 20;  // staging, and Buffers that are pinned or locked for an engine, of one Context
  std::uint64_t device_budget_bytes = 0;  // GPU memory allocated through one Context; 0: no such limit
  bool nvtx = false;                      // every request is a range in NVIDIA's profilers
  std::uint32_t trace_events = 0;         // kept of each lane, for Context::trace; 0: none
  std::string publish;                    // a name under which others can see the statistics; empty: nobody can
  Deadlines deadlines;

  // Reads a JSON object; absent keys keep their defaults.
  static Result<Options> from_json(std::string_view text);
  // `indent` below zero: one line.
  std::string to_json(int indent = -1) const;
  Status validate() const;
  // Fills in what the machine decides, and makes the rest fit it. A pure function; `alignment_bytes` stays with the
  // store. Lanes: usable CPUs, at most 16. The budget: at most a quarter of the memory of the machine or its cgroup.
  // Staging slots are halved while those of all lanes exceed half of the lockable memory (down to 256 KiB) or the
  // budget without what callers' lanes need (down to 64 KiB); if that is not enough for the budget, slots per lane go,
  // and then lanes.
  Options resolved(const Machine& machine) const;

  friend bool operator==(const Options&, const Options&) = default;
};

}  // namespace penstock
