#include "core/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace penstock::core {
namespace {

TEST(Histogram, buckets_follow_each_other_without_gaps) {
  std::size_t last = 0;
  for (std::uint64_t value = 0; value < 1 << 16; ++value) {
    const std::size_t bucket = Histogram::bucket_of(value);
    EXPECT_TRUE(bucket == last || bucket == last + 1) << value;
    last = bucket;
  }
}

TEST(Histogram, takes_every_value) {
  EXPECT_EQ(Histogram::bucket_of(0), 0u);
  EXPECT_EQ(Histogram::bucket_of(UINT64_MAX), Histogram::bucket_count - 1);
  for (unsigned bit = 0; bit < 64; ++bit) {
    EXPECT_LT(Histogram::bucket_of(std::uint64_t{1} << bit), Histogram::bucket_count);
  }
}

TEST(Histogram, percentiles_of_nothing_are_zero) {
  EXPECT_EQ(Histogram().percentile(0.5), 0);
  EXPECT_EQ(Histogram().count(), 0u);
}

TEST(Histogram, small_values_are_exact) {
  Histogram histogram;
  for (std::uint64_t value = 1; value <= 10; ++value) histogram.add(Histogram::bucket_of(value), 1);
  EXPECT_EQ(histogram.percentile(0.5), 5);
  EXPECT_EQ(histogram.percentile(0.99), 10);
  EXPECT_EQ(histogram.percentile(0), 1);
  EXPECT_EQ(histogram.percentile(1), 10);
}

TEST(Histogram, percentiles_are_close_to_the_exact_ones) {
  std::mt19937_64 random(3);
  for (const double spread : {0.1, 1.0, 3.0}) {
    std::lognormal_distribution<double> latency(11, spread);
    std::vector<std::uint64_t> values(50'000);
    Histogram histogram;
    for (std::uint64_t& value : values) {
      value = static_cast<std::uint64_t>(latency(random));
      histogram.add(Histogram::bucket_of(value), 1);
    }
    std::sort(values.begin(), values.end());
    for (const double fraction : {0.01, 0.5, 0.9, 0.99, 0.999}) {
      const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(values.size())));
      const auto exact = static_cast<double>(values[rank - 1]);
      EXPECT_NEAR(histogram.percentile(fraction), exact, exact * 0.035 + 0.5) << spread << " " << fraction;
    }
  }
}

TEST(Histogram, a_difference_is_what_came_between) {
  Histogram earlier;
  earlier.add(Histogram::bucket_of(1000), 1'000'000);
  Histogram later = earlier;
  later.add(Histogram::bucket_of(8), 3);
  later.subtract(earlier);
  EXPECT_EQ(later.count(), 3u);
  EXPECT_EQ(later.percentile(0.99), 8);
}

}  // namespace
}  // namespace penstock::core
