// Policy: where units belong, by their heat and by the room there is. Pure functions: what they are given decides, and
// the reason says what of it.
//
// Heat is the number of accesses, each of which counts half after a half-life. A unit belongs to the fastest tier whose
// `from_heat` it has reached. Three things keep it from going to and fro: it must cool well below that to leave, it
// stays a while after a move, and it displaces only what is much colder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/tiers.h"

namespace penstock::tiers {

struct TierState {
  std::string name;
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;
  double low_water = 0;
  double high_water = 0;
  double from_heat = 0;
  bool usable = true;  // units may move to and from it
};

struct UnitState {
  std::uint32_t tier = 0;  // index, the fastest first
  std::uint64_t room_bytes = 0;
  double heat = 0;  // now
  double moved_at = 0;
  std::optional<std::uint32_t> pinned = {};
};

// What is left of heat after a time.
double faded(double heat, double seconds, double half_life_seconds);

struct Wish {
  std::uint32_t tier = 0;
  std::string reason;
};
// Where a unit belongs, as if there were room.
Wish wish(std::span<const TierState> tiers, const UnitState& unit, const TierPolicy& policy, double now);

struct Step {
  std::size_t unit = 0;  // its index
  std::uint32_t to = 0;
  std::string reason;
};
// The moves, in an order in which each has room when its turn comes.
std::vector<Step> plan_steps(std::span<const TierState> tiers, std::span<const UnitState> units,
                             const TierPolicy& policy, double now);

// The fastest tier with room for a new unit.
std::optional<Wish> place_new(std::span<const TierState> tiers, std::uint64_t room_bytes);

}  // namespace penstock::tiers
