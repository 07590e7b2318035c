#include "services/layers/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

namespace penstock::layers {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

Uses used_at(std::initializer_list<std::uint64_t> times, double half_life = 100) {
  Uses uses;
  for (const std::uint64_t time : times) note_use(uses, time, half_life);
  return uses;
}

TEST(LayersPolicy, a_group_that_was_never_used_is_expected_never) {
  EXPECT_EQ(distance(Uses{}, 5, 100), never);
  EXPECT_FALSE(is_expected(Uses{}, 5));
}

TEST(LayersPolicy, a_regular_group_is_expected_one_gap_after_its_last_use) {
  const Uses uses = used_at({10, 30, 50});
  EXPECT_TRUE(uses.regular);
  EXPECT_EQ(distance(uses, 50, 100), 20);
  EXPECT_EQ(distance(uses, 65, 100), 5);
  EXPECT_EQ(distance(uses, 71, 100), 1);  // late, and due at any moment
}

TEST(LayersPolicy, gaps_that_differ_by_an_eighth_are_alike) {
  EXPECT_TRUE(used_at({1, 17, 35}).regular);
  EXPECT_FALSE(used_at({1, 17, 36}).regular);
  EXPECT_FALSE(used_at({1, 17}).regular);
}

TEST(LayersPolicy, an_overdue_group_is_judged_by_how_often_it_was_used) {
  const Uses uses = used_at({10, 30, 50});
  EXPECT_TRUE(is_expected(uses, 72));
  EXPECT_FALSE(is_expected(uses, 73));
  EXPECT_GT(distance(uses, 73, 100), 20);
}

TEST(LayersPolicy, more_and_later_uses_bring_the_next_one_nearer) {
  const Uses often = used_at({1, 5, 14, 20});
  const Uses rarely = used_at({1, 20});
  EXPECT_LT(distance(often, 21, 100), distance(rarely, 21, 100));
  EXPECT_LT(distance(used_at({20}), 21, 100), distance(used_at({1}), 21, 100));
}

TEST(LayersPolicy, an_empty_slot_comes_first) {
  const std::vector<Candidate> slots = {{.distance = 9}, {.is_empty = true}, {.distance = 99}};
  EXPECT_EQ(decide(slots, {.demanded = true}), 1);
  EXPECT_EQ(decide(slots, {.distance = never}), 1);
}

TEST(LayersPolicy, the_farthest_goes) {
  const std::vector<Candidate> slots = {{.distance = 9}, {.distance = 99}, {.distance = 30}};
  EXPECT_EQ(decide(slots, {.demanded = true}), 1);
  EXPECT_EQ(decide(slots, {.distance = 4}), 1);
}

TEST(LayersPolicy, what_is_fixed_never_goes) {
  const std::vector<Candidate> slots = {{.distance = 9}, {.is_fixed = true, .distance = 99}};
  EXPECT_EQ(decide(slots, {.demanded = true}), 0);
  EXPECT_EQ(decide(std::span(slots).last(1), {.demanded = true}), std::nullopt);
  const std::vector<Candidate> lost = {{.is_empty = true, .is_fixed = true}};
  EXPECT_EQ(decide(lost, {.demanded = true}), std::nullopt);
}

TEST(LayersPolicy, what_is_loaded_ahead_takes_no_room_from_what_is_needed_sooner) {
  const std::vector<Candidate> slots = {{.distance = 9}, {.distance = 12}};
  EXPECT_EQ(decide(slots, {.distance = 12}), std::nullopt);
  EXPECT_EQ(decide(slots, {.distance = 11}), 1);
  EXPECT_EQ(decide(slots, {.demanded = true, .distance = 12}), 1);
}

TEST(LayersPolicy, what_stays_goes_only_for_somebody_who_waits_and_last) {
  const std::vector<Candidate> slots = {{.distance = 9}, {.stays = true, .distance = 99}};
  EXPECT_EQ(decide(slots, {.demanded = true}), 0);
  EXPECT_EQ(decide(std::span(slots).last(1), {.demanded = true}), 0);
  EXPECT_EQ(decide(std::span(slots).last(1), {.distance = 1}), std::nullopt);
}

TEST(LayersPolicy, what_a_stream_has_passed_goes_before_what_is_needed_about_as_late) {
  const std::vector<Candidate> slots = {{.distance = 50}, {.is_in_use = true, .distance = 99}, {.distance = 49}};
  EXPECT_EQ(decide(slots, {.demanded = true}), 0);
  EXPECT_EQ(decide(slots, {.distance = 4}), 0);
  EXPECT_EQ(decide(std::span(slots).last(2), {.demanded = true}), 0);  // 49 is much sooner than 99
  const std::vector<Candidate> staying = {{.is_in_use = true, .distance = 9}, {.stays = true, .distance = 9}};
  EXPECT_EQ(decide(staying, {.demanded = true}), 0);
}

TEST(LayersPolicy, groups_that_stay_are_spread_evenly) {
  const Turns turns{.groups = 20, .slots = 8, .for_turns = 3};
  std::vector<std::size_t> staying;
  for (std::size_t i = 0; i < turns.groups; ++i) {
    if (stays(turns, i)) staying.push_back(i);
  }
  EXPECT_EQ(staying, (std::vector<std::size_t>{0, 4, 8, 12, 16}));
  EXPECT_FALSE(stays({.groups = 20, .slots = 3, .for_turns = 3}, 0));
  EXPECT_TRUE(stays({.groups = 3, .slots = 3, .for_turns = 3}, 2));
}

TEST(LayersPolicy, turns_have_three_slots_or_as_many_as_hold_what_is_loaded_ahead) {
  EXPECT_EQ(slots_for_turns(10, 400 << 20, 256 << 20), 3);
  EXPECT_EQ(slots_for_turns(10, 60 << 20, 256 << 20), 5);
  EXPECT_EQ(slots_for_turns(2, 60 << 20, 256 << 20), 2);
  EXPECT_EQ(slots_for_turns(1000, 1 << 20, 256 << 20), 258);
}

// A cache without a clock, streams or disks: it loads what is asked for, and nothing ahead.
class Simulation {
 public:
  Simulation(std::size_t groups, std::size_t slots)
      : uses_(groups), in_(slots, nobody), half_life_(half_life(groups)), slots_(slots) {}

  bool acquire(std::size_t group) {
    note_use(uses_[group], ++now_, half_life_);
    if (std::ranges::find(in_, group) != in_.end()) return true;
    const Turns turns{uses_.size(), slots_, slots_for_turns(slots_, 1, 1)};
    std::vector<Candidate> candidates;
    for (const std::size_t each : in_) {
      if (each == nobody) {
        candidates.push_back({.is_empty = true});
        continue;
      }
      candidates.push_back({.stays = is_expected(uses_[each], now_) && stays(turns, each),
                            .distance = distance(uses_[each], now_, half_life_)});
    }
    in_[decide(candidates, {.demanded = true}).value()] = group;
    return false;
  }

 private:
  static constexpr std::size_t nobody = SIZE_MAX;
  std::vector<Uses> uses_;
  std::vector<std::size_t> in_;
  double half_life_;
  std::size_t slots_;
  std::uint64_t now_ = 0;
};

double hit_rate(const std::vector<std::size_t>& trace, std::size_t groups, std::size_t slots) {
  Simulation cache(groups, slots);
  const auto hits = std::ranges::count_if(trace, [&](std::size_t group) { return cache.acquire(group); });
  return static_cast<double>(hits) / static_cast<double>(trace.size());
}

// Of all that could be done with the trace known: the group that is used last, or never again, goes.
double belady_hit_rate(const std::vector<std::size_t>& trace, std::size_t groups, std::size_t slots) {
  std::vector<std::size_t> next(trace.size());
  std::vector<std::size_t> seen(groups, SIZE_MAX);
  for (std::size_t i = trace.size(); i-- > 0;) next[i] = std::exchange(seen[trace[i]], i);
  std::map<std::size_t, std::size_t> in;  // groups, by their next use; those without one have places behind the trace
  std::vector<std::size_t> place(groups, SIZE_MAX);
  std::size_t hits = 0;
  for (std::size_t i = 0; i < trace.size(); ++i) {
    const std::size_t group = trace[i];
    if (place[group] != SIZE_MAX) {
      ++hits;
      in.erase(place[group]);
    } else if (in.size() == slots) {
      place[in.rbegin()->second] = SIZE_MAX;
      in.erase(std::prev(in.end()));
    }
    place[group] = next[i] == SIZE_MAX ? trace.size() + group : next[i];
    in[place[group]] = group;
  }
  return static_cast<double>(hits) / static_cast<double>(trace.size());
}

std::vector<std::size_t> zipf_trace(std::size_t groups, double exponent, std::size_t length, std::uint64_t seed) {
  std::vector<double> weights(groups);
  for (std::size_t i = 0; i < groups; ++i) weights[i] = std::pow(static_cast<double>(i + 1), -exponent);
  std::mt19937_64 random(seed);
  std::ranges::shuffle(weights, random);
  std::discrete_distribution<std::size_t> choose(weights.begin(), weights.end());
  std::vector<std::size_t> trace(length);
  for (std::size_t& group : trace) group = choose(random);
  return trace;
}

TEST(LayersPolicy, belady_is_told_from_worse_by_a_trace_done_by_hand) {
  const std::vector<std::size_t> trace = {0, 1, 2, 0, 1, 3, 0, 1};
  EXPECT_DOUBLE_EQ(belady_hit_rate(trace, 4, 2), 2.0 / 8);
  EXPECT_DOUBLE_EQ(belady_hit_rate(trace, 4, 3), 4.0 / 8);
}

TEST(LayersPolicy, a_zipf_router_is_served_at_085_of_beladys_hit_rate) {
  for (const std::size_t groups : {64, 128, 256}) {
    for (const std::uint64_t seed : {1, 2, 3, 4}) {
      const auto trace = zipf_trace(groups, 1, 20'000, seed);
      const double ours = hit_rate(trace, groups, groups / 2);
      const double best = belady_hit_rate(trace, groups, groups / 2);
      EXPECT_GE(ours, 0.85 * best) << groups << " groups, seed " << seed << ": " << ours << " of " << best;
      RecordProperty("zipf_" + std::to_string(groups) + "_" + std::to_string(seed), std::to_string(ours / best));
    }
  }
}

TEST(LayersPolicy, a_router_that_changes_its_mind_is_followed) {
  std::vector<std::size_t> trace;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    const auto part = zipf_trace(64, 1, 4000, seed);
    trace.insert(trace.end(), part.begin(), part.end());
  }
  EXPECT_GE(hit_rate(trace, 64, 32), 0.8 * belady_hit_rate(trace, 64, 32));
}

TEST(LayersPolicy, passes_in_turn_hit_what_stays) {
  std::vector<std::size_t> trace;
  for (std::size_t i = 0; i < 100 * 20; ++i) trace.push_back(i % 20);
  // By recency alone there would be no hits at all.
  EXPECT_GE(hit_rate(trace, 20, 10), 0.33);
  EXPECT_LE(hit_rate(trace, 20, 10), belady_hit_rate(trace, 20, 10));
}

}  // namespace
}  // namespace penstock::layers
