#include "core/statistics.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <vector>

namespace penstock::core {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t ms = 1'000'000;

TEST(Statistics, of_nothing_are_empty) {
  const StatisticsHub hub({"posix", "uring"});
  const Statistics statistics = hub.snapshot();
  EXPECT_TRUE(statistics.routes.empty());
  EXPECT_EQ(statistics.requests, 0u);
  EXPECT_GE(statistics.seconds, 0);
}

TEST(Statistics, are_kept_by_engine_and_route) {
  StatisticsHub hub({"posix", "uring"});
  const auto lane = hub.add_lane();
  lane->record(0, Route::cached, 100, 10, true);
  lane->record(1, Route::direct, 4096, 2000, true);
  lane->record(1, Route::direct, 4096, 4000, true);
  lane->record(1, Route::direct, 0, 50, false);
  lane->record(1, Route::mapped, 0, 50, false);
  const Statistics statistics = hub.snapshot();
  ASSERT_EQ(statistics.routes.size(), 3u);

  const RouteStatistics& cached = statistics.routes[0];
  EXPECT_EQ(cached.engine, "posix");
  EXPECT_EQ(cached.route, Route::cached);
  EXPECT_EQ(cached.bytes, 100u);
  EXPECT_DOUBLE_EQ(cached.latency_p50_seconds, 10e-9);

  const RouteStatistics& direct = statistics.routes[1];
  EXPECT_EQ(direct.engine, "uring");
  EXPECT_EQ(direct.route, Route::direct);
  EXPECT_EQ(direct.bytes, 8192u);
  EXPECT_EQ(direct.operations, 2u);
  EXPECT_EQ(direct.failed, 1u);
  EXPECT_DOUBLE_EQ(direct.latency_average_seconds, 3e-6);
  EXPECT_NEAR(direct.latency_p99_seconds, 4e-6, 0.2e-6);

  const RouteStatistics& mapped = statistics.routes[2];
  EXPECT_EQ(mapped.operations, 0u);
  EXPECT_EQ(mapped.failed, 1u);
  EXPECT_EQ(mapped.latency_average_seconds, 0);
  EXPECT_EQ(mapped.latency_p999_seconds, 0);
  EXPECT_EQ(mapped.bandwidth_effective, 0);
}

TEST(Statistics, of_callers_add_up_whatever_threads_they_are) {
  StatisticsHub hub({"posix"});
  constexpr std::uint64_t calls = 2000;
  const TimePoint start = Clock::now();
  std::array<std::thread, 6> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (std::uint64_t i = 1; i <= calls; ++i) {
        hub.count_call(0, Route::cached, 4096, 500, start + std::chrono::microseconds(i));
        if (i % 100 != 0) continue;
        EXPECT_LE(hub.snapshot().requests, threads.size() * calls);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Statistics statistics = hub.snapshot();
  EXPECT_EQ(statistics.requests, threads.size() * calls);
  ASSERT_EQ(statistics.routes.size(), 1U);
  EXPECT_EQ(statistics.routes[0].operations, threads.size() * calls);
  EXPECT_EQ(statistics.routes[0].bytes, threads.size() * calls * 4096);
  hub.reset();
  hub.count_call(0, Route::cached, 1, 500, Clock::now());
  EXPECT_EQ(hub.snapshot().requests, 1U);
  EXPECT_EQ(hub.snapshot().routes[0].bytes, 1U);
}

TEST(Statistics, of_one_caller_count_the_time_of_all_its_calls) {
  StatisticsHub hub({"posix"});
  TurnedClock clock;
  for (int i = 0; i < 1000; ++i) {
    clock.turn_by(std::chrono::microseconds(1));
    hub.count_call(0, Route::cached, 1000, 1000, Clock::now());
  }
  EXPECT_NEAR(hub.snapshot().routes[0].bandwidth_effective, 1e9, 1e7);
}

TEST(Statistics, effective_bandwidth_counts_only_time_with_work) {
  StatisticsHub hub({"posix"});
  const auto first = hub.add_lane();
  const auto second = hub.add_lane();
  const TimePoint start = TimePoint(std::chrono::hours(1));
  // Both lanes busy for the same 10 ms, then nothing for a second, then one lane for 10 ms.
  first->record(0, Route::direct, 1'000'000, 10 * ms, true);
  first->publish(start);
  second->record(0, Route::direct, 1'000'000, 10 * ms, true);
  second->publish(start);
  first->record(0, Route::direct, 1'000'000, 10 * ms, true);
  first->publish(start + milliseconds(1000));
  const Statistics statistics = hub.snapshot();
  EXPECT_NEAR(statistics.routes[0].bandwidth_effective, 3e6 / 0.020, 1);
}

TEST(Statistics, peak_bandwidth_is_the_best_tenth_of_a_second) {
  StatisticsHub hub({"posix"});
  const auto lane = hub.add_lane();
  const TimePoint start = TimePoint(std::chrono::hours(1));
  for (int window = 0; window < 10; ++window) {
    const int operations = window == 4 ? 10 : 2;
    for (int index = 0; index < operations; ++index) {
      lane->record(0, Route::direct, 1'000'000, 5 * ms, true);
      lane->publish(start + milliseconds(window * 100 + index * 10 + 5));
    }
  }
  EXPECT_NEAR(hub.snapshot().routes[0].bandwidth_peak, 2e8, 2e8 * 0.01);
}

TEST(Statistics, a_lane_that_publishes_late_does_not_break_the_window) {
  StatisticsHub hub({"posix"});
  const auto lane = hub.add_lane();
  const TimePoint start = TimePoint(std::chrono::hours(1));
  for (const int at : {150, 90, 160}) {
    lane->record(0, Route::direct, 1'000'000'000, 20 * ms, true);
    lane->publish(start + milliseconds(at));
  }
  EXPECT_NEAR(hub.snapshot().routes[0].bandwidth_peak, 100e9, 1e6);  // 3 GB in 30 ms of work
}

TEST(Statistics, peak_is_at_least_the_effective_bandwidth) {
  StatisticsHub hub({"posix"});
  const auto lane = hub.add_lane();
  lane->record(0, Route::cached, 1'000'000, ms, true);
  lane->publish(Clock::now());
  const Statistics statistics = hub.snapshot();
  EXPECT_NEAR(statistics.routes[0].bandwidth_effective, 1e9, 1);
  EXPECT_GE(statistics.routes[0].bandwidth_peak, statistics.routes[0].bandwidth_effective);
}

TEST(Statistics, a_reset_forgets_what_was_before_it) {
  StatisticsHub hub({"posix"});
  const auto lane = hub.add_lane();
  for (int index = 0; index < 1000; ++index) lane->record(0, Route::cached, 1'000'000, 900 * ms, true);
  lane->publish(Clock::now());
  hub.request_ended(true);
  hub.request_ended(false);
  EXPECT_EQ(hub.snapshot().requests, 2u);
  EXPECT_EQ(hub.snapshot().requests_failed, 1u);
  lane->record_made(700, 1000);
  EXPECT_EQ(hub.snapshot().stored_bytes, 700u);
  EXPECT_EQ(hub.snapshot().made_bytes, 1000u);

  hub.reset();
  EXPECT_EQ(hub.snapshot().stored_bytes, 0u);
  hub.add_lane()->record_made(7, 10);
  EXPECT_TRUE(hub.snapshot().routes.empty());
  EXPECT_EQ(hub.snapshot().requests, 0u);
  lane->record(0, Route::cached, 10, 12, true);
  hub.request_ended(true);
  const Statistics statistics = hub.snapshot();
  ASSERT_EQ(statistics.routes.size(), 1u);
  EXPECT_EQ(statistics.routes[0].bytes, 10u);
  EXPECT_EQ(statistics.routes[0].operations, 1u);
  EXPECT_DOUBLE_EQ(statistics.routes[0].latency_p999_seconds, 12e-9);
  EXPECT_DOUBLE_EQ(statistics.routes[0].latency_average_seconds, 12e-9);
  EXPECT_EQ(statistics.routes[0].bandwidth_peak, 0);
  EXPECT_EQ(statistics.requests, 1u);
  EXPECT_EQ(statistics.requests_failed, 0u);
  EXPECT_EQ(statistics.stored_bytes, 7u);
  EXPECT_EQ(statistics.made_bytes, 10u);
}

TEST(Statistics, of_ended_lanes_are_not_lost_and_their_counters_are_used_again) {
  StatisticsHub hub({"posix"});
  const LaneStatistics* first = nullptr;
  for (int lane = 0; lane < 100; ++lane) {
    const auto statistics = hub.add_lane();
    if (lane == 0) first = statistics.get();
    EXPECT_EQ(statistics.get(), first);
    statistics->record(0, Route::cached, 1, 1, true);
  }
  EXPECT_EQ(hub.snapshot().routes[0].operations, 100u);
}

TEST(Statistics, two_lanes_never_share_counters) {
  StatisticsHub hub({"posix"});
  const auto first = hub.add_lane();
  const auto second = hub.add_lane();
  EXPECT_NE(first.get(), second.get());
}

TEST(Statistics, a_lane_may_outlive_its_hub) {
  std::shared_ptr<LaneStatistics> of_hub;
  {
    StatisticsHub hub({"posix"});
    of_hub = hub.add_lane();
  }
  of_hub->record(0, Route::cached, 1, 1, true);
  of_hub->publish(Clock::now());

  // What it publishes to is as old as the hub, and goes with the last that has it.
  auto meters = std::make_shared<std::vector<BandwidthMeter>>(route_count);
  const std::weak_ptr<std::vector<BandwidthMeter>> seen = meters;
  std::optional<LaneStatistics> lane(std::in_place, 1, std::move(meters));
  ASSERT_FALSE(seen.expired());
  lane->record(0, Route::direct, 1 << 20, 1000, true);
  lane->publish(Clock::now());
  EXPECT_GT((*seen.lock())[static_cast<std::size_t>(Route::direct)].peak(), 0);
  lane.reset();
  EXPECT_TRUE(seen.expired());
}

TEST(Statistics, snapshots_and_resets_run_while_lanes_record) {
  constexpr int writers = 3;
  constexpr int lanes_each = 20;
  constexpr int records_each = 2000;
  StatisticsHub hub({"posix", "uring"});
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < writers; ++writer) {
    threads.emplace_back([&hub, writer] {
      for (int lane = 0; lane < lanes_each; ++lane) {
        const auto statistics = hub.add_lane();
        for (int index = 0; index < records_each; ++index) {
          statistics->record(writer % 2, Route::direct, 4096, 1000 + index, true);
          if (index % 16 == 0) statistics->publish(Clock::now());
        }
        hub.request_ended(true);
      }
    });
  }
  std::thread reader([&] {
    while (!stop) {
      for (const RouteStatistics& route : hub.snapshot().routes) {
        EXPECT_LE(route.operations, std::uint64_t{writers} * lanes_each * records_each);
        EXPECT_LE(route.latency_p999_seconds, 3.2e-6);
      }
    }
  });
  std::thread resetter([&] {
    while (!stop) {
      hub.reset();
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  reader.join();
  resetter.join();

  hub.reset();
  EXPECT_TRUE(hub.snapshot().routes.empty());
}

TEST(Statistics, nothing_is_lost_between_threads) {
  constexpr int writers = 4;
  constexpr int records_each = 50'000;
  StatisticsHub hub({"posix"});
  std::vector<std::thread> threads;
  for (int writer = 0; writer < writers; ++writer) {
    threads.emplace_back([&hub] {
      const auto lane = hub.add_lane();
      for (int index = 0; index < records_each; ++index) {
        lane->record(0, Route::direct, 3, 1000, index % 10 != 0);
        if (index % 64 == 0) lane->publish(Clock::now());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Statistics statistics = hub.snapshot();
  EXPECT_EQ(statistics.routes[0].operations, std::uint64_t{writers} * records_each * 9 / 10);
  EXPECT_EQ(statistics.routes[0].failed, std::uint64_t{writers} * records_each / 10);
  EXPECT_EQ(statistics.routes[0].bytes, 3 * statistics.routes[0].operations);
}

TEST(Statistics, are_written_as_json_with_every_member) {
  StatisticsHub hub({"posix"});
  const auto lane = hub.add_lane();
  lane->record(0, Route::buffered, 7, 9, true);
  Statistics statistics = hub.snapshot();
  statistics.pinned_bytes = 11;
  const auto json = nlohmann::json::parse(statistics.to_json());
  EXPECT_EQ(json["pinned_bytes"], 11);
  EXPECT_EQ(json["requests"], 0);
  ASSERT_EQ(json["routes"].size(), 1u);
  EXPECT_EQ(json["routes"][0]["engine"], "posix");
  EXPECT_EQ(json["routes"][0]["route"], "buffered");
  EXPECT_EQ(json["routes"][0]["bytes"], 7);
  EXPECT_EQ(json["routes"][0]["operations"], 1);
  EXPECT_DOUBLE_EQ(json["routes"][0]["latency_p50_seconds"].get<double>(), 9e-9);
}

}  // namespace
}  // namespace penstock::core
