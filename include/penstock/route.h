// Route: the path that bytes really took. The one list of routes; engines add theirs here.
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
};
inline constexpr std::size_t route_count = 4;

PENSTOCK_EXPORT std::string_view route_name(Route route);
PENSTOCK_EXPORT std::optional<Route> route_from_name(std::string_view name);

// Bytes by route, indexed by Route.
using RouteBytes = std::array<std::uint64_t, route_count>;

}  // namespace penstock
