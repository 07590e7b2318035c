// Route: the path that bytes really took. This is the only list of routes; engines add theirs here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/export.h"

namespace penstock {

enum class Route : std::uint8_t {
  cached,    // copied from the page cache, where the bytes already were
  direct,    // from the device past the page cache
  buffered,  // through the page cache, residency unknown or absent; network and FUSE mounts
  mapped,    // copied out of a read-only mapping
  made,      // by a function of yours (penstock/recipe.h)

  // For GPUs, and memory that an engine can't reach. Staged: through Penstock's memory, pinned for a GPU.
  cached_staged,
  direct_staged,
  buffered_staged,
  made_staged,
  gds,             // GPUDirect Storage by nvidia-fs: the disk writes into the GPU's memory
  p2pdma,          // the same by the kernel's P2PDMA
  cufile_compat,   // cuFile's own staging; only on request
  cufile_unknown,  // cuFile moved them and does not say how
};
inline constexpr std::size_t route_count = 13;

PENSTOCK_EXPORT std::string_view route_name(Route route);
PENSTOCK_EXPORT std::optional<Route> route_from_name(std::string_view name);

// The route to a GPU for bytes that reach host memory by `route`.
constexpr Route staged(Route route) {
  switch (route) {
    case Route::cached:
      return Route::cached_staged;
    case Route::direct:
      return Route::direct_staged;
    case Route::made:
      return Route::made_staged;
    default:
      return Route::buffered_staged;
  }
}

// Bytes by route, indexed by Route.
using RouteBytes = std::array<std::uint64_t, route_count>;

// How many bytes took a route.
struct RouteShare {
  Route route = Route::cached;
  std::uint64_t bytes = 0;

  friend bool operator==(const RouteShare&, const RouteShare&) = default;
};

}  // namespace penstock
