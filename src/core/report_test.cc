#include <gtest/gtest.h>

#include "penstock/request.h"

namespace penstock::core {
namespace {

TEST(Report, lists_the_routes_that_bytes_took_the_largest_first) {
  Report report;
  EXPECT_TRUE(report.routes_taken().empty());
  report.routes[static_cast<std::size_t>(Route::cached)] = 10;
  report.routes[static_cast<std::size_t>(Route::direct)] = 30;
  report.routes[static_cast<std::size_t>(Route::made)] = 10;
  EXPECT_EQ(report.routes_taken(),
            (std::vector<RouteShare>{{Route::direct, 30}, {Route::cached, 10}, {Route::made, 10}}));
}

TEST(Report, prints_itself) {
  Report report{.outcome = Outcome::done, .bytes = 3'000'000'000, .seconds = 1.5, .reason = "why"};
  report.routes[static_cast<std::size_t>(Route::direct)] = 3'000'000'000;
  EXPECT_EQ(report.to_string(), "3000000000 bytes in 1.500 s, 2.00 GB/s, direct 3000000000\nwhy");
  report.seconds = 0;
  EXPECT_EQ(report.to_string(), "3000000000 bytes in 0.000 s, 0.00 GB/s, direct 3000000000\nwhy");
  report.error = Error{Code::timed_out, 0, "it took too long", "give it more time"};
  EXPECT_EQ(report.to_string(), "it took too long\ngive it more time");
}

}  // namespace
}  // namespace penstock::core
