// The names of the public enumerations, each list in the order of its enumeration.
#include <array>
#include <cstddef>
#include <string_view>

#include "penstock/options.h"
#include "penstock/request.h"
#include "penstock/route.h"
#include "penstock/store.h"

namespace penstock {
namespace {

constexpr std::array<std::string_view, route_count> route_names = {
    "cached",          "direct",      "buffered", "mapped", "made",          "cached-staged", "direct-staged",
    "buffered-staged", "made-staged", "gds",      "p2pdma", "cufile-compat", "cufile-unknown"};
constexpr std::array<std::string_view, 3> cache_names = {"auto", "keep", "bypass"};
constexpr std::array<std::string_view, 5> outcome_names = {"pending", "done", "failed", "cancelled", "abandoned"};
constexpr std::array<std::string_view, 4> limit_names = {"unknown", "storage", "copy", "cpu"};
constexpr std::array<std::string_view, 3> store_kind_names = {"file", "block_device", "made"};
constexpr std::array<std::string_view, 4> locality_names = {"local", "memory", "network", "fuse"};

template <typename Enum, std::size_t count>
std::string_view name_of(const std::array<std::string_view, count>& names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < count ? names[index] : "invalid";
}

}  // namespace

std::string_view route_name(Route route) {
  return name_of(route_names, route);
}

std::optional<Route> route_from_name(std::string_view name) {
  for (std::size_t index = 0; index < route_names.size(); ++index) {
    if (route_names[index] == name) return static_cast<Route>(index);
  }
  return std::nullopt;
}

std::string_view cache_name(Cache cache) {
  return name_of(cache_names, cache);
}
std::string_view outcome_name(Outcome outcome) {
  return name_of(outcome_names, outcome);
}
std::string_view limit_name(Limit limit) {
  return name_of(limit_names, limit);
}
std::string_view store_kind_name(StoreKind kind) {
  return name_of(store_kind_names, kind);
}
std::string_view locality_name(Locality locality) {
  return name_of(locality_names, locality);
}

}  // namespace penstock
