// Options: all options of a Context. Zero means "let the machine decide"; `resolved` shows what it decided. JSON both
// ways; unknown keys and impossible values are refused with the name of the key.
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
  automatic,  // the fastest route; what is likely to be read again stays in the page cache
  keep,       // leave what was read in the page cache
  bypass,     // never use the page cache if the store can do without
};
PENSTOCK_EXPORT std::string_view cache_name(Cache cache);

struct PENSTOCK_EXPORT Deadlines {
  double request_seconds = 0;         // how long a request may take; 0: no limit
  double stall_seconds = 60;          // how long a request may make no progress, or a server not answer; 0: forever
  double cancel_grace_seconds = 0.1;  // how long a cancelled or late request waits for its operations
  double stream_seconds = 5;  // copies without progress for this long, while streams wait for us, count as stuck
  double close_seconds = 5;   // how long closing a Context or a store waits before it leaves stuck operations behind

  friend bool operator==(const Deadlines&, const Deadlines&) = default;
};

struct PENSTOCK_EXPORT Options {
  std::vector<Route> allowed_routes = {};  // empty: all but cufile_compat and cufile_unknown
  std::string engine = {};                 // empty: the planner chooses; PENSTOCK_ENGINE overrides
  std::vector<std::string> modules = {};   // paths of engines to load beside the built-in ones
  Cache cache = Cache::automatic;
  std::uint32_t lanes = 0;                       // 0: usable CPUs, at most 16
  std::uint32_t operations_in_flight = 64;       // per lane
  std::uint32_t operations_in_flight_total = 0;  // shared equally by all lanes; 0: no limit
  std::uint64_t bytes_in_flight = 512 << 20;     // past the page cache, per device, all lanes together
  std::uint64_t storage_chunk_bytes = 1 << 20;   // the usual size of a storage operation
  std::uint64_t staging_slot_bytes = 4 << 20;
  std::uint32_t staging_slots_per_lane = 3;
  // Memory for staging instead of the lanes' own: a memfd that other processes may map too. -1: none. Not in JSON. You
  // may close it once the Context exists.
  int staging_descriptor = -1;
  std::uint64_t prefetch_window_bytes = 64 << 20;  // the most that one prefetch call starts to read
  std::uint64_t alignment_bytes = 0;               // of direct transfers; 0: ask the store
  std::uint64_t pinned_budget_bytes =
      320 << 20;                          // staging, and Buffers that are pinned or locked for an engine, per Context
  std::uint64_t device_budget_bytes = 0;  // GPU memory allocated through a Context; 0: no limit
  bool nvtx = false;                      // show every request as a range in NVIDIA's profilers
  std::uint32_t trace_events = 0;         // kept per lane, for Context::trace; 0: none
  std::string publish = {};               // the name under which others see the statistics; empty: not published
  Deadlines deadlines = {};

  // Reads a JSON object; absent keys keep their defaults.
  static Result<Options> from_json(std::string_view text);
  // `indent` below zero: one line.
  std::string to_json(int indent = -1) const;
  Status validate() const;
  // Fills in what the machine decides, and makes the rest fit. A pure function; `alignment_bytes` stays with the
  // store. Lanes: usable CPUs, at most 16. The budget: at most a quarter of the memory of the machine or cgroup.
  // Staging slots are halved while those of all lanes exceed half of the lockable memory (down to 256 KiB) or the
  // budget without what callers' lanes need (down to 64 KiB); if the budget is still too small, slots per lane are
  // reduced, then lanes.
  Options resolved(const Machine& machine) const;

  friend bool operator==(const Options&, const Options&) = default;
};

}  // namespace penstock
