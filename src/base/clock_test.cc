#include "base/clock.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

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

TEST(TurnedClock, begins_now_and_stands_still_until_it_is_turned) {
  const TimePoint before = Clock::now();
  TurnedClock clock;
  const TimePoint begun = Clock::now();
  EXPECT_GE(begun, before);
  while (std::chrono::steady_clock::now() <= begun) {
  }
  EXPECT_EQ(Clock::now(), begun);
  clock.turn_by(std::chrono::hours(1));
  EXPECT_EQ(Clock::now(), begun + std::chrono::hours(1));
  clock.turn_to(begun + std::chrono::hours(3));
  EXPECT_EQ(Clock::now(), begun + std::chrono::hours(3));
  clock.turn_by(Duration::zero());
  EXPECT_EQ(Clock::now(), begun + std::chrono::hours(3));
}

TEST(TurnedClock, is_the_clock_of_all_threads) {
  TurnedClock clock;
  clock.turn_by(std::chrono::hours(1));
  TimePoint seen;
  std::thread([&] { seen = Clock::now(); }).join();
  EXPECT_EQ(seen, Clock::now());
}

TEST(TurnedClock, gives_the_clock_back_when_it_ends) {
  {
    TurnedClock clock;
    clock.turn_by(std::chrono::hours(1000));
  }
  const TimePoint before = std::chrono::steady_clock::now();
  const TimePoint now = Clock::now();
  EXPECT_GE(now, before);
  EXPECT_LE(now, std::chrono::steady_clock::now());
}

}  // namespace
}  // namespace penstock
