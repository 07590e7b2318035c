#include <gtest/gtest.h>

#include "core/request.h"

namespace penstock::core {
namespace {

struct Lanes {
  double waiting_seconds, copy_seconds, cpu_seconds;
};

Report report_of_lanes(Route route, Lanes lanes) {
  Report report;
  report.bytes = 8ULL << 30;
  report.routes[static_cast<std::size_t>(route)] = report.bytes;
  report.copy_seconds = lanes.copy_seconds;
  report.cpu_seconds = lanes.cpu_seconds;
  settle_time(report, lanes.waiting_seconds + lanes.copy_seconds + lanes.cpu_seconds);
  return report;
}

Limit limit_of_lanes(Route route, Lanes lanes) {
  return report_of_lanes(route, lanes).limit;
}

// The figures are those of an H200 with 16 lanes, where nothing else is said.
TEST(Limit, is_the_bus_where_lanes_wait_for_copies_even_if_they_work_longer) {
  EXPECT_EQ(limit_of_lanes(Route::cached_staged, {0, 7.3, 11.3}), Limit::copy);
  EXPECT_EQ(limit_of_lanes(Route::cached_staged, {0.02, 3.2, 15.2}), Limit::copy) << "tmpfs";
}

TEST(Limit, is_the_cpu_where_lanes_never_wait) {
  EXPECT_EQ(limit_of_lanes(Route::cached_staged, {0.004, 0.003, 19.1}), Limit::cpu) << "four lanes";
  EXPECT_EQ(limit_of_lanes(Route::cached_staged, {0.7, 2.0, 28}), Limit::cpu) << "a million short ranges";
  EXPECT_EQ(limit_of_lanes(Route::direct, {1, 0, 2}), Limit::cpu) << "many short reads";
}

TEST(Limit, is_the_cpu_where_cached_bytes_wait_for_one_and_the_time_beside_it_says_so) {
  const Report report = report_of_lanes(Route::cached, {3, 0, 1});
  EXPECT_EQ(report.limit, Limit::cpu);
  EXPECT_DOUBLE_EQ(report.cpu_seconds, 4);
  EXPECT_DOUBLE_EQ(report.storage_seconds, 0) << "nothing was asked of a disk";
}

TEST(Limit, is_storage_where_lanes_wait_for_it) {
  EXPECT_EQ(limit_of_lanes(Route::direct_staged, {17.7, 0.5, 5}), Limit::storage);
  EXPECT_EQ(limit_of_lanes(Route::direct_staged, {10, 9, 1}), Limit::storage) << "more than for copies";
  const Report report = report_of_lanes(Route::direct, {3, 0, 0.1});
  EXPECT_EQ(report.limit, Limit::storage);
  EXPECT_NEAR(report.storage_seconds, 3, 1e-9);
  EXPECT_DOUBLE_EQ(report.cpu_seconds, 0.1);
}

}  // namespace
}  // namespace penstock::core
