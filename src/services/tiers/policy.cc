#include "services/tiers/policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace penstock::tiers {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 10 && value != std::floor(value) ? "%.1f" : "%.0f", value);
  return text.data();
}

std::string percent(double share) {
  return number(share * 100) + " %";
}

double limit_of(const TierState& tier) {
  return tier.high_water * static_cast<double>(tier.capacity_bytes);
}

bool has_room(const TierState& tier, std::uint64_t room_bytes) {
  return tier.usable && static_cast<double>(tier.used_bytes) + static_cast<double>(room_bytes) <= limit_of(tier);
}

bool has_to_stay(const UnitState& unit, const TierPolicy& policy, double now) {
  // What moved while the clock was ahead would stay for ever.
  return unit.moved_at > 0 && unit.moved_at <= now && now - unit.moved_at < policy.least_stay_seconds;
}

// By heat alone, which is rounded: a hundred accesses in a row are a hundred, though the first has begun to fade.
std::uint32_t tier_for(std::span<const TierState> tiers, double heat) {
  for (std::uint32_t i = 0; i + 1 < tiers.size(); ++i) {
    if (heat + 0.5 >= tiers[i].from_heat) return i;
  }
  return static_cast<std::uint32_t>(tiers.size() - 1);
}

// The reason as a number, since a million units need no texts.
enum class Why { pinned, hot, cold, right, warm_enough, moved_lately };

std::pair<std::uint32_t, Why> choose(std::span<const TierState> tiers, const UnitState& unit, const TierPolicy& policy,
                                     double now) {
  if (unit.pinned) return {*unit.pinned, Why::pinned};
  const std::uint32_t best = tier_for(tiers, unit.heat);
  if (best == unit.tier) return {best, Why::right};
  if (has_to_stay(unit, policy, now)) return {unit.tier, Why::moved_lately};
  if (best < unit.tier) return {best, Why::hot};
  if (unit.heat >= policy.cooling * tiers[unit.tier].from_heat) return {unit.tier, Why::warm_enough};
  return {best, Why::cold};
}

std::string text_of(Why why, std::span<const TierState> tiers, const UnitState& unit, std::uint32_t to,
                    const TierPolicy& policy) {
  const std::string heat = "heat " + number(unit.heat);
  switch (why) {
    case Why::pinned:
      return "it is pinned to " + tiers[to].name;
    case Why::hot:
      return heat + " reaches " + number(tiers[to].from_heat) + ", from which units belong to " + tiers[to].name;
    case Why::cold:
      return heat + " is below " + number(policy.cooling * tiers[unit.tier].from_heat) + ", at which units leave " +
             tiers[unit.tier].name;
    case Why::right:
      return heat + (to + 1 == tiers.size() ? " is less than any other tier is for"
                                            : " reaches " + number(tiers[to].from_heat) + " of " + tiers[to].name);
    case Why::warm_enough:
      return heat + " has not fallen below " + number(policy.cooling * tiers[unit.tier].from_heat) +
             ", at which units leave " + tiers[unit.tier].name;
    case Why::moved_lately:
      return "it came to its tier less than " + number(policy.least_stay_seconds) + " seconds ago";
  }
  return heat;
}

// One plan in the making.
class Planner {
 public:
  Planner(std::span<const TierState> tiers, std::span<const UnitState> units, const TierPolicy& policy, double now)
      : tiers_(tiers.begin(), tiers.end()), units_(units), policy_(policy), now_(now), moved_(units.size(), false) {}

  std::vector<Step> run() {
    std::vector<Wanted> slower;
    std::vector<Wanted> faster;
    for (std::size_t i = 0; i < units_.size(); ++i) {
      if (!tiers_[units_[i].tier].usable) continue;
      const auto [to, why] = choose(tiers_, units_[i], policy_, now_);
      if (to > units_[i].tier) slower.push_back({i, to, why});
      if (to < units_[i].tier) faster.push_back({i, to, why});
    }
    const auto heat = [&](const Wanted& wanted) { return units_[wanted.unit].heat; };
    std::ranges::stable_sort(slower, {}, heat);
    std::ranges::stable_sort(faster, std::greater<>(), heat);
    for (const Wanted& wanted : slower) move_down(wanted);
    for (std::uint32_t tier = 0; tier + 1 < tiers_.size(); ++tier) drain(tier);
    for (const Wanted& wanted : faster) move_up(wanted);
    return std::move(steps_);
  }

 private:
  struct Wanted {
    std::size_t unit;
    std::uint32_t to;
    Why why;
  };

  void add(std::size_t unit, std::uint32_t to, std::string reason) {
    tiers_[units_[unit].tier].used_bytes -= std::min(tiers_[units_[unit].tier].used_bytes, units_[unit].room_bytes);
    tiers_[to].used_bytes += units_[unit].room_bytes;
    moved_[unit] = true;
    steps_.push_back({unit, to, std::move(reason)});
  }

  std::optional<std::uint32_t> room_below(std::uint32_t tier, std::uint64_t room_bytes) const {
    for (std::uint32_t to = tier + 1; to < tiers_.size(); ++to) {
      if (has_room(tiers_[to], room_bytes)) return to;
    }
    return std::nullopt;
  }

  void move_down(const Wanted& wanted) {
    const UnitState& unit = units_[wanted.unit];
    std::string reason = text_of(wanted.why, tiers_, unit, wanted.to, policy_);
    if (has_room(tiers_[wanted.to], unit.room_bytes)) return add(wanted.unit, wanted.to, std::move(reason));
    if (wanted.why == Why::pinned) return;
    if (const auto to = room_below(wanted.to, unit.room_bytes)) {
      add(wanted.unit, *to, std::move(reason) + "; " + tiers_[wanted.to].name + " has no room");
    }
  }

  // Those that may leave a tier, the coldest first.
  const std::vector<std::size_t>& residents(std::uint32_t tier) {
    if (residents_.empty()) {
      residents_.resize(tiers_.size());
      cursor_.resize(tiers_.size());
      hopeless_.resize(tiers_.size(), UINT64_MAX);
      for (std::size_t i = 0; i < units_.size(); ++i) {
        if (!units_[i].pinned) residents_[units_[i].tier].push_back(i);
      }
      for (auto& list : residents_) std::ranges::stable_sort(list, {}, [&](std::size_t i) { return units_[i].heat; });
    }
    return residents_[tier];
  }

  // Above the high water mark: down to the low one.
  void drain(std::uint32_t tier) {
    const TierState& state = tiers_[tier];
    if (!state.usable || static_cast<double>(state.used_bytes) <= limit_of(state)) return;
    const double low = state.low_water * static_cast<double>(state.capacity_bytes);
    const std::string reason = state.name + " is above its high water mark of " + percent(state.high_water) +
                               ", and this is the coldest there";
    for (const std::size_t unit : residents(tier)) {
      if (static_cast<double>(state.used_bytes) <= low) return;
      if (moved_[unit]) continue;
      if (const auto to = room_below(tier, units_[unit].room_bytes)) add(unit, *to, reason);
    }
  }

  // The tier that it belongs to, or the next best.
  void move_up(const Wanted& wanted) {
    const UnitState& unit = units_[wanted.unit];
    for (std::uint32_t to = wanted.to; to < unit.tier; ++to) {
      if (!tiers_[to].usable) continue;
      if (!has_room(tiers_[to], unit.room_bytes) && !make_room(to, unit)) {
        if (wanted.why == Why::pinned) return;
        continue;
      }
      std::string reason = text_of(wanted.why, tiers_, unit, wanted.to, policy_);
      if (to != wanted.to) reason += "; " + tiers_[wanted.to].name + " has no room";
      return add(wanted.unit, to, std::move(reason));
    }
  }

  // Displaces what is much colder, if that is enough.
  bool make_room(std::uint32_t tier, const UnitState& unit) {
    const auto& list = residents(tier);
    if (unit.room_bytes >= hopeless_[tier]) return false;
    double missing =
        static_cast<double>(tiers_[tier].used_bytes) + static_cast<double>(unit.room_bytes) - limit_of(tiers_[tier]);
    std::vector<std::pair<std::size_t, std::uint32_t>> leaving;
    std::vector<TierState> then = tiers_;
    std::size_t at = cursor_[tier];
    for (; at < list.size() && missing > 0; ++at) {
      const UnitState& other = units_[list[at]];
      if (moved_[list[at]]) continue;
      if (other.heat >= policy_.cooling * unit.heat) break;
      if (has_to_stay(other, policy_, now_)) continue;
      for (std::uint32_t to = tier + 1; to < then.size(); ++to) {
        if (!has_room(then[to], other.room_bytes)) continue;
        then[to].used_bytes += other.room_bytes;
        missing -= static_cast<double>(other.room_bytes);
        leaving.emplace_back(list[at], to);
        break;
      }
    }
    if (missing > 0) {
      hopeless_[tier] = unit.room_bytes;
      return false;
    }
    cursor_[tier] = at;
    for (const auto& [other, to] : leaving) {
      add(other, to,
          "heat " + number(units_[other].heat) + " is little beside " + number(unit.heat) + " of a unit that needs " +
              "the room on " + tiers_[tier].name);
    }
    return true;
  }

  std::vector<TierState> tiers_;
  const std::span<const UnitState> units_;
  const TierPolicy& policy_;
  const double now_;
  std::vector<bool> moved_;
  std::vector<Step> steps_;
  std::vector<std::vector<std::size_t>> residents_;  // by tier; made when they are first needed
  std::vector<std::size_t> cursor_;                  // those before it have been displaced, or can't be
  std::vector<std::uint64_t> hopeless_;              // the least room that could not be made; later units are colder
};

}  // namespace

double faded(double heat, double seconds, double half_life_seconds) {
  if (half_life_seconds <= 0 || seconds <= 0) return heat;
  return heat * std::exp2(-seconds / half_life_seconds);
}

Wish wish(std::span<const TierState> tiers, const UnitState& unit, const TierPolicy& policy, double now) {
  const auto [to, why] = choose(tiers, unit, policy, now);
  return {to, text_of(why, tiers, unit, to, policy)};
}

std::vector<Step> plan_steps(std::span<const TierState> tiers, std::span<const UnitState> units,
                             const TierPolicy& policy, double now) {
  return Planner(tiers, units, policy, now).run();
}

std::optional<Wish> place_new(std::span<const TierState> tiers, std::uint64_t room_bytes) {
  std::string full;
  for (std::uint32_t i = 0; i < tiers.size(); ++i) {
    if (has_room(tiers[i], room_bytes)) {
      return Wish{i, full.empty() ? "the fastest tier has room" : "the fastest tier with room;" + full};
    }
    full += " " + tiers[i].name + (tiers[i].usable ? " has no room" : " can't be used");
  }
  return std::nullopt;
}

}  // namespace penstock::tiers
