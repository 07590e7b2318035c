#include "services/tiers/policy.h"

#include <gtest/gtest.h>

namespace penstock::tiers {
namespace {

constexpr std::uint64_t gib = 1ULL << 30;

std::vector<TierState> three_tiers(std::uint64_t fast_bytes = 100 * gib) {
  return {{.name = "nvme", .capacity_bytes = fast_bytes, .low_water = 0.8, .high_water = 0.9, .from_heat = 100},
          {.name = "ssd", .capacity_bytes = 1000 * gib, .low_water = 0.8, .high_water = 0.9, .from_heat = 10},
          {.name = "hdd", .capacity_bytes = 10000 * gib, .low_water = 0.8, .high_water = 0.9, .from_heat = 0}};
}

UnitState unit_on(std::uint32_t tier, double heat, std::uint64_t room_bytes = gib) {
  return {.tier = tier, .room_bytes = room_bytes, .heat = heat};
}

TEST(TierPolicy, heat_halves_after_a_half_life) {
  EXPECT_DOUBLE_EQ(faded(100, 3600, 3600), 50);
  EXPECT_DOUBLE_EQ(faded(100, 3600, 0), 100);
  EXPECT_DOUBLE_EQ(faded(100, -5, 3600), 100);
}

TEST(TierPolicy, heat_decides_the_tier) {
  const auto tiers = three_tiers();
  EXPECT_EQ(wish(tiers, unit_on(2, 100), {}, 0).tier, 0U);
  EXPECT_EQ(wish(tiers, unit_on(2, 99), {}, 0).tier, 1U);
  EXPECT_EQ(wish(tiers, unit_on(2, 9), {}, 0).tier, 2U);
  EXPECT_NE(wish(tiers, unit_on(2, 100), {}, 0).reason.find("reaches 100"), std::string::npos);
}

TEST(TierPolicy, a_unit_leaves_only_when_it_is_much_colder) {
  const auto tiers = three_tiers();
  EXPECT_EQ(wish(tiers, unit_on(0, 60), {}, 0).tier, 0U);
  EXPECT_EQ(wish(tiers, unit_on(0, 49), {}, 0).tier, 1U);
  EXPECT_EQ(wish(tiers, unit_on(1, 6), {}, 0).tier, 1U);
  EXPECT_EQ(wish(tiers, unit_on(1, 4), {}, 0).tier, 2U);
}

TEST(TierPolicy, a_unit_stays_a_while_after_a_move) {
  UnitState unit = unit_on(2, 500);
  unit.moved_at = 1000;
  EXPECT_EQ(wish(three_tiers(), unit, {}, 1010).tier, 2U);
  EXPECT_EQ(wish(three_tiers(), unit, {}, 1601).tier, 0U);
}

TEST(TierPolicy, what_moved_while_the_clock_was_ahead_does_not_stay) {
  UnitState unit = unit_on(2, 500);
  unit.moved_at = 2e9;
  EXPECT_EQ(wish(three_tiers(), unit, {}, 1000).tier, 0U);
}

TEST(TierPolicy, a_pin_overrules_heat) {
  UnitState unit = unit_on(0, 500);
  unit.pinned = 2;
  EXPECT_EQ(wish(three_tiers(), unit, {}, 0).tier, 2U);
  const auto steps = plan_steps(three_tiers(), std::vector{unit}, {}, 0);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].to, 2U);
}

TEST(TierPolicy, above_the_high_water_mark_the_coldest_leave_down_to_the_low_one) {
  auto tiers = three_tiers(10 * gib);
  std::vector<UnitState> units;
  for (int i = 0; i < 10; ++i) units.push_back(unit_on(0, 200 + i));
  tiers[0].used_bytes = 10 * gib;
  const auto steps = plan_steps(tiers, units, {}, 0);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].unit, 0U);
  EXPECT_EQ(steps[1].unit, 1U);
  EXPECT_EQ(steps[0].to, 1U);
}

TEST(TierPolicy, a_hot_unit_displaces_what_is_much_colder_and_nothing_else) {
  auto tiers = three_tiers(10 * gib);
  tiers[0].used_bytes = 9 * gib;
  std::vector<UnitState> units;
  for (int i = 0; i < 9; ++i) units.push_back(unit_on(0, i == 4 ? 120 : 900));
  units.push_back(unit_on(2, 1000));
  const auto steps = plan_steps(tiers, units, {}, 0);
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].unit, 4U);
  EXPECT_EQ(steps[1].unit, 9U);
  EXPECT_EQ(steps[1].to, 0U);
  // Where all are as hot, it goes to the next best.
  units[4].heat = 900;
  const auto others = plan_steps(tiers, units, {}, 0);
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(others[0].to, 1U);
}

TEST(TierPolicy, nothing_moves_to_or_from_a_tier_that_cant_be_used) {
  auto tiers = three_tiers();
  tiers[0].usable = false;
  EXPECT_EQ(plan_steps(tiers, std::vector{unit_on(2, 500)}, {}, 0).at(0).to, 1U);
  EXPECT_TRUE(plan_steps(tiers, std::vector{unit_on(0, 0)}, {}, 0).empty());
}

TEST(TierPolicy, a_plan_never_takes_a_tier_above_its_high_water_mark) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    std::uint32_t state = seed;
    const auto random = [&](std::uint32_t below) { return (state = state * 1664525U + 1013904223U) / 65536U % below; };
    auto tiers = three_tiers((5 + random(20)) * gib);
    tiers[1].capacity_bytes = (5 + random(40)) * gib;
    std::vector<UnitState> units;
    for (std::uint32_t i = 0; i < 40; ++i) {
      units.push_back(unit_on(random(3), random(400), (1 + random(3)) * gib));
      tiers[units.back().tier].used_bytes += units.back().room_bytes;
    }
    std::vector<double> used;
    for (const auto& tier : tiers) used.push_back(static_cast<double>(tier.used_bytes));
    for (const Step& step : plan_steps(tiers, units, {}, 0)) {
      const auto room = static_cast<double>(units[step.unit].room_bytes);
      used[units[step.unit].tier] -= room;
      used[step.to] += room;
      EXPECT_LE(used[step.to], 0.9 * static_cast<double>(tiers[step.to].capacity_bytes)) << "seed " << seed;
      EXPECT_NE(step.to, units[step.unit].tier) << "seed " << seed;
      EXPECT_FALSE(step.reason.empty());
    }
  }
}

TEST(TierPolicy, a_plan_that_was_carried_out_is_followed_by_none) {
  for (std::uint32_t seed = 1; seed <= 100; ++seed) {
    std::uint32_t state = seed * 77;
    const auto random = [&](std::uint32_t below) { return (state = state * 1664525U + 1013904223U) / 65536U % below; };
    auto tiers = three_tiers(10 * gib);
    std::vector<UnitState> units;
    for (std::uint32_t i = 0; i < 30; ++i) units.push_back(unit_on(random(3), random(300)));
    const auto add_up = [&] {
      for (auto& tier : tiers) tier.used_bytes = 0;
      for (const auto& unit : units) tiers[unit.tier].used_bytes += unit.room_bytes;
    };
    add_up();
    const double now = 10000;
    for (const Step& step : plan_steps(tiers, units, {}, now)) {
      units[step.unit].tier = step.to;
      units[step.unit].moved_at = now;
    }
    add_up();
    EXPECT_TRUE(plan_steps(tiers, units, {}, now + 1).empty()) << "seed " << seed;
  }
}

TEST(TierPolicy, a_new_unit_goes_to_the_fastest_tier_with_room) {
  auto tiers = three_tiers(10 * gib);
  EXPECT_EQ(place_new(tiers, 9 * gib)->tier, 0U);
  EXPECT_EQ(place_new(tiers, 10 * gib)->tier, 1U);
  EXPECT_FALSE(place_new(tiers, 20000 * gib));
}

}  // namespace
}  // namespace penstock::tiers
