#include <gtest/gtest.h>

#include "services/measuring/races.h"

namespace penstock::measuring {
namespace {

TEST(Series, has_the_median_the_quartiles_and_the_spread) {
  const Series series = Series::of({4, 1, 3, 2, 5});
  EXPECT_DOUBLE_EQ(series.median, 3);
  EXPECT_DOUBLE_EQ(series.p25, 2);
  EXPECT_DOUBLE_EQ(series.p75, 4);
  EXPECT_DOUBLE_EQ(series.spread, 4.0 / 3);
  EXPECT_EQ(series.rounds, (std::vector<double>{4, 1, 3, 2, 5}));
}

TEST(Series, lies_between_two_in_the_middle) {
  EXPECT_DOUBLE_EQ(Series::of({1, 2}).median, 1.5);
  EXPECT_DOUBLE_EQ(Series::of({7}).p75, 7);
  EXPECT_DOUBLE_EQ(Series::of({}).median, 0);
}

// Contenders of made-up speeds, who write down when it was their turn.
class RaceTest : public testing::Test {
 protected:
  Contender contender(std::string name, std::vector<std::uint64_t> speeds) {
    auto round = std::make_shared<std::size_t>(0);
    return {.row = {.name = name}, .round = [this, name, speeds, round](double) -> Result<Sample> {
              turns_.push_back(name);
              if (*round == speeds.size()) return Error{.code = Code::io_error, .message = "no more"};
              return Sample{.bytes = speeds[(*round)++], .seconds = 1, .cpu_seconds = 0.5};
            }};
  }
  Result<Race> run(std::vector<Contender> contenders, const Schedule& schedule = {.rounds = 3}) {
    return run_race(RaceState::cached, std::move(contenders), schedule, [](const std::string&) {});
  }

  std::vector<std::string> turns_;
};

TEST_F(RaceTest, everybody_runs_in_each_round_and_somebody_else_begins) {
  ASSERT_TRUE(run({contender("a", {1, 1, 1}), contender("b", {1, 1, 1})}));
  EXPECT_EQ(turns_, (std::vector<std::string>{"a", "b", "b", "a", "a", "b"}));
}

TEST_F(RaceTest, the_ratio_is_that_of_rounds_not_of_medians) {
  const Result<Race> race = run({contender("plain", {100, 200, 400}), contender("ours", {50, 200, 100})});
  ASSERT_TRUE(race);
  EXPECT_EQ(race->rows[1].ratio.rounds, (std::vector<double>{0.5, 1, 0.25}));
  EXPECT_DOUBLE_EQ(race->rows[1].ratio.median, 0.5);
  EXPECT_DOUBLE_EQ(race->rows[1].bytes_per_second.median, 100);
  EXPECT_DOUBLE_EQ(race->rows[0].cpu_seconds_per_gigabyte, 0.5 / 200 * 1e9);
}

TEST_F(RaceTest, an_unsteady_yardstick_concludes_nothing) {
  EXPECT_TRUE(run({contender("plain", {100, 103, 105}), contender("ours", {1, 50, 100})})->conclusive);
  EXPECT_FALSE(run({contender("plain", {100, 103, 107}), contender("ours", {100, 100, 100})})->conclusive);
}

TEST_F(RaceTest, who_fails_leaves_with_the_reason) {
  const Result<Race> race =
      run({contender("plain", {1, 1, 1}), contender("broken", {1}), contender("ours", {2, 2, 2})});
  ASSERT_TRUE(race);
  ASSERT_EQ(race->rows.size(), 2U);
  EXPECT_DOUBLE_EQ(race->rows[1].ratio.median, 2);
  ASSERT_EQ(race->left_out.size(), 1U);
  EXPECT_EQ(race->left_out[0].name, "broken");
  EXPECT_EQ(race->left_out[0].reason, "no more");
}

TEST_F(RaceTest, without_a_yardstick_there_is_no_race) {
  const Result<Race> race = run({contender("plain", {1}), contender("ours", {1, 1, 1})});
  ASSERT_TRUE(race);
  EXPECT_EQ(race->refused, "plain: no more");
  EXPECT_TRUE(race->rows.empty());
}

TEST_F(RaceTest, makes_the_fewest_rounds_even_when_the_time_is_over) {
  const Result<Race> race = run({contender("plain", {1, 1, 1, 1, 1, 1, 1})}, {.rounds = 7, .fewest = 3, .seconds = 0});
  ASSERT_TRUE(race);
  EXPECT_EQ(race->rows[0].bytes_per_second.rounds.size(), 3U);
}

}  // namespace
}  // namespace penstock::measuring
