// The planner: which engine serves a store, and which way the bytes of a window take. Pure functions of facts; every
// choice carries its reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/op.h"
#include "penstock/options.h"
#include "penstock/request.h"
#include "penstock/result.h"
#include "penstock/store.h"

namespace penstock::core {

struct EngineFacts {
  std::string_view name;
  bool serves_scheme = false;
  bool available = false;
  std::string_view unavailable_because;
  bool sleeps_in_kernel = false;
  bool only_device = false;  // reaches GPU memory and nothing else: chosen for that, or if it is asked for
};

struct EnginePlan {
  std::size_t engine = 0;  // its index in the table
  std::string reason;
};

// `engines` in order of preference. `wanted` empty: any. `locality` unset: not known before the store is open.
Result<EnginePlan> plan_engine(std::span<const EngineFacts> engines, std::string_view wanted,
                               std::optional<Locality> locality);

// Routes as a set of bits.
using RouteSet = std::uint32_t;
constexpr RouteSet route_bit(Route route) {
  return RouteSet{1} << static_cast<unsigned>(route);
}
// Empty: all but cuFile's compat mode, which is slower than our staging, and what may be that.
RouteSet route_set(std::span<const Route> routes);

// Why a window went the way it went.
enum class Reason : std::uint8_t {
  in_memory,  // the file system keeps everything in memory
  in_page_cache,
  not_in_page_cache,  // read past the cache, nothing left behind: the file does not fit there
  keep_asked,         // cache=keep
  bypass_asked,       // cache=bypass
  no_direct,          // the store can't be reached past the cache
  remote,             // a network or FUSE mount: deep buffered reads
  residency_unknown,  // the kernel won't tell; a few pages, or the time of a few reads, decided
  write_through,      // writes of block devices go straight to the device
  edge,               // ends of a write that fill no whole block
  refused,            // the kernel refused a direct transfer that should have worked
  not_allowed,        // the better route is not among the allowed ones
  straight,           // between the disk and the GPU, without us
  no_page_cache,      // the store has none
  cufile_compat,      // should have gone straight, and cuFile took it through host memory
  cufile_unknown,     // may have
  out_of_reach,       // memory of the host that the engine can't name
  made,               // there is no other way
  file_fits,          // through the page cache, where it stays
  read_again,         // the same, of a file that does not fit
  tried_past,         // past the cache to see how fast that is
  faster_past,        // it would fit, but the disk is much faster past the cache
  write_fits,         // written through the page cache, where it stays
  write_past,         // written past it: the file does not fit there
  write_faster_past,  // it would fit, but the disk is much faster past the cache
};
inline constexpr std::size_t reason_count = 25;
std::string_view reason_text(Reason reason);
// What was to go straight is known only afterwards: the reason by the route that it took.
Reason reason_after(Reason planned, Route route);

enum class Residency : std::uint8_t {
  all,
  none,
  some,
  unknown,      // not asked, or the kernel won't tell
  likely_all,   // unknown, and the pages that were looked at were there, or a timed sample was fast
  likely_none,  // unknown, and one was not, or a sample was slow, or was not taken: a server may not answer
};

// Whether a window of a file stays in the page cache with Cache::automatic (core/caching.h).
enum class Stays : std::uint8_t {
  no,        // the file does not fit, or does not matter
  file,      // it fits
  again,     // it does not, but the window is read a second time
  later,     // it fits, and the window is read past the page cache once more, to see how fast that is
  too_slow,  // it would fit, but is faster past the page cache
};

struct WindowFacts {
  Direction direction = Direction::read;
  Locality locality = Locality::local;
  bool direct = false;      // the store can be reached past the page cache
  bool page_cache = false;  // and through it
  Cache cache = Cache::automatic;
  RouteSet allowed = ~RouteSet{0};
  Residency residency = Residency::unknown;
  Stays stays = Stays::no;
  StoreKind kind = StoreKind::file;
  bool out_of_reach = false;          // memory that the engine can't name, or a GPU's: host routes are staged
  std::optional<Route> device_route;  // of a GPU's: the store can be reached from there without staging
};

struct WindowPlan {
  engine::Path path = engine::Path::buffered;
  Reason reason = Reason::no_direct;
  bool drop_after = false;  // let the page cache forget what this brought in
  bool fill_after = false;  // or bring there what went past it
};

// Whether plan_window looks at the residency: it costs a system call.
inline bool wants_residency(const WindowFacts& facts) {
  return facts.direction == Direction::read && facts.locality != Locality::memory && facts.page_cache &&
         (facts.cache != Cache::bypass || !facts.direct);
}
// Nothing: no allowed route can carry the window.
std::optional<WindowPlan> plan_window(const WindowFacts& facts);

}  // namespace penstock::core
