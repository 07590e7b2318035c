#include "base/clock.h"

#include <gtest/gtest.h>

#include <limits>

namespace penstock {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(Clock, takes_seconds_of_any_size) {
  EXPECT_EQ(duration_from_seconds(1.5), std::chrono::milliseconds(1500));
  for (const double none : {0.0, -0.0, -1.0, -1e300, -infinity, nan}) {
    EXPECT_EQ(duration_from_seconds(none), Duration::zero()) << none;
  }
  for (const double endless : {9e9, 1e10, 1e300, infinity}) {
    EXPECT_EQ(duration_from_seconds(endless), Duration::max()) << endless;
  }
  EXPECT_GT(duration_from_seconds(8.9e9), std::chrono::hours(24 * 365 * 282));
}

TEST(Clock, adds_without_overflow) {
  const TimePoint now = Clock::now();
  EXPECT_EQ(time_after(now, Duration::max()), TimePoint::max());
  EXPECT_EQ(time_after(now, std::chrono::seconds(1)), now + std::chrono::seconds(1));
  EXPECT_LT(time_after(now, Duration::min()), now);
}

TEST(Clock, refuses_seconds_that_nobody_can_mean) {
  for (const double seconds : {-1.0, nan, infinity, 1e9}) {
    const Status status = check_seconds("patience", seconds);
    ASSERT_FALSE(status.ok()) << seconds;
    EXPECT_EQ(status.error().code, Code::invalid_argument);
    EXPECT_NE(status.error().message.find("patience"), std::string::npos);
    EXPECT_FALSE(status.error().hint.empty());
  }
  EXPECT_TRUE(check_seconds("patience", 0).ok());
  EXPECT_TRUE(check_seconds("patience", 3600).ok());
}

}  // namespace
}  // namespace penstock
