#include "services/tuning/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace penstock::tuning {
namespace {

Rounds steady(double before, double after) {
  return {std::vector<double>(7, before), std::vector<double>(7, after)};
}

// A machine whose speed is a function of the options.
class Made {
 public:
  explicit Made(std::function<double(const Options&)> speed, int trials = 1000)
      : speed_(std::move(speed)), trials_left_(trials) {}

  static Machine machine() {
    Machine made;
    made.usable_cpus = 4;
    made.memory_bytes = std::uint64_t{64} << 30;
    made.lockable_bytes = UINT64_MAX;
    return made;
  }
  Options climb(bool staged) {
    const Climb job{.machine = machine(),
                    .staged = staged,
                    .compare = [&](const Options& before, const Options& after) -> Result<Comparison> {
                      const Options a = before.resolved(machine()), b = after.resolved(machine());
                      return Comparison{steady(speed_(a), speed_(b)), {}};
                    },
                    .in_time = [&] { return trials_left_ > 0; },
                    .on_trial = [&](const TuningTrial& trial) { --trials_left_, seen_.push_back(trial); }};
    return *tuning::climb(job);
  }
  const std::vector<TuningTrial>& seen() const { return seen_; }

 private:
  std::function<double(const Options&)> speed_;
  int trials_left_;
  std::vector<TuningTrial> seen_;
};

// Fastest where a value is `best`, and slower by 10 % for every doubling away from it.
double peak(double value, double best) {
  return std::pow(0.9, std::abs(std::log2(value / best)));
}

TEST(TuningSearch, finds_a_peak_in_several_options) {
  Made made([](const Options& options) {
    return peak(options.lanes, 16) * peak(static_cast<double>(options.storage_chunk_bytes), 256 << 10) *
           peak(options.operations_in_flight, 128);
  });
  const Options best = made.climb(false);
  EXPECT_EQ(best.lanes, 16u);
  EXPECT_EQ(best.storage_chunk_bytes, 256u << 10);
  EXPECT_EQ(best.operations_in_flight, 128u);
  EXPECT_EQ(best.staging_slot_bytes, Options().staging_slot_bytes);
}

TEST(TuningSearch, leaves_the_defaults_where_nothing_helps) {
  Made made([](const Options&) { return 1e9; });
  EXPECT_EQ(made.climb(true), Options());
  EXPECT_GE(made.seen().size(), 10u);
}

TEST(TuningSearch, turns_staging_only_where_bytes_are_staged) {
  const auto speed = [](const Options& options) {
    return peak(static_cast<double>(options.staging_slot_bytes), 1 << 20) * peak(options.staging_slots_per_lane, 6);
  };
  EXPECT_EQ(Made(speed).climb(false), Options());
  const Options best = Made(speed).climb(true);
  EXPECT_EQ(best.staging_slot_bytes, 1u << 20);
  EXPECT_EQ(best.staging_slots_per_lane, 6u);
}

TEST(TuningSearch, tries_nothing_that_the_machine_would_not_do) {
  Made made([](const Options& options) {
    return static_cast<double>(options.lanes * options.staging_slot_bytes * options.staging_slots_per_lane);
  });
  const Options best = made.climb(true);
  EXPECT_TRUE(best.validate().ok());
  for (const TuningTrial& trial : made.seen()) {
    const auto real = tuned_options(trial.options.resolved(made.machine()));
    for (const auto& chosen : tuned_options(trial.options)) {
      EXPECT_EQ(std::ranges::count(real, chosen), 1) << chosen.first << " " << chosen.second;
    }
  }
}

TEST(TuningSearch, ends_when_the_time_is_over) {
  Made made([](const Options& options) { return static_cast<double>(options.operations_in_flight); }, 2);
  made.climb(true);
  EXPECT_EQ(made.seen().size(), 2u);
}

TEST(TuningSearch, passes_on_what_goes_wrong) {
  const Climb job{
      .machine = {},
      .compare = [](const Options&, const Options&) -> Result<Comparison> { return Error{.code = Code::io_error}; },
      .in_time = [] { return true; },
      .on_trial = [](const TuningTrial&) {}};
  const auto best = climb(job);
  ASSERT_FALSE(best.ok());
  EXPECT_EQ(best.error().code, Code::io_error);
}

TEST(TuningVerdict, wants_more_than_three_percent) {
  EXPECT_FALSE(judge({steady(100, 102.9), {}}).better);
  EXPECT_TRUE(judge({steady(100, 103.1), {}}).better);
  EXPECT_TRUE(judge({{}, steady(100, 103.1)}).better);
  EXPECT_FALSE(judge({}).better);
}

TEST(TuningVerdict, wants_more_than_the_noise_of_the_defaults) {
  const std::vector<double> noisy = {80, 85, 90, 100, 110, 115, 120};
  const Verdict verdict = judge({{noisy, std::vector<double>(7, 115)}, {}});
  EXPECT_FALSE(verdict.better);
  EXPECT_NEAR(verdict.noise, 0.3, 0.1);
  EXPECT_TRUE(judge({{noisy, std::vector<double>(7, 150)}, {}}).better);
}

TEST(TuningVerdict, one_outlier_is_no_noise) {
  EXPECT_TRUE(judge({{{100, 100, 100, 20, 100, 100, 100}, std::vector<double>(7, 105)}, {}}).better);
}

TEST(TuningVerdict, a_gain_may_not_cost_the_other_kind) {
  EXPECT_TRUE(judge({steady(100, 120), steady(10, 9.8)}).better);
  EXPECT_FALSE(judge({steady(100, 120), steady(10, 9)}).better);
}

TEST(TuningComparison, gains_by_the_mean_of_both) {
  EXPECT_NEAR((Comparison{steady(100, 121), steady(10, 10)}.gain()), 1.1, 1e-9);
  EXPECT_NEAR((Comparison{{}, steady(10, 12)}.gain()), 1.2, 1e-9);
}

}  // namespace
}  // namespace penstock::tuning
