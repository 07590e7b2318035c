#include "core/trace.h"

#include <gtest/gtest.h>

#include <thread>

namespace penstock::core {

namespace {

TimePoint at(double seconds) {
  return TimePoint() + duration_from_seconds(seconds);
}

Trace trace_of(const LaneTrace& lane, double since = 0) {
  Trace trace{.lanes = 1};
  lane.read(since, trace);
  return trace;
}

TEST(LaneTrace, keeps_what_fits_and_counts_the_rest) {
  LaneTrace lane(3, 2, at(1));
  for (int i = 0; i < 5; ++i) lane.add_transfer(TraceKind::storage, at(2 + i), at(3 + i), 4096, Route::direct);
  const Trace trace = trace_of(lane);
  ASSERT_EQ(trace.events.size(), 2u);
  EXPECT_EQ(trace.dropped, 3u);
  EXPECT_EQ(trace.events[1].begin_seconds, 2);
  EXPECT_EQ(trace.events[1].end_seconds, 3);
  EXPECT_EQ(trace.events[1].lane, 3u);
  EXPECT_EQ(trace.events[1].route, Route::direct);
  EXPECT_EQ(trace_of(lane, 2).events.size(), 1u);
}

TEST(LaneTrace, joins_waits_that_follow_each_other) {
  LaneTrace lane(0, 8, at(0));
  lane.add_wait(TraceKind::waits_for_copies, at(1), at(2));
  lane.add_wait(TraceKind::waits_for_copies, at(2.000001), at(3));
  lane.add_wait(TraceKind::waits_for_copies, at(4), at(5));
  lane.add_wait(TraceKind::idle, at(5), at(6));
  const Trace trace = trace_of(lane);
  ASSERT_EQ(trace.events.size(), 2u);  // the last may still grow
  EXPECT_EQ(trace.events[0].begin_seconds, 1);
  EXPECT_EQ(trace.events[0].end_seconds, 3);
}

TEST(LaneTrace, may_be_read_while_it_grows) {
  constexpr std::uint32_t count = 2000;
  LaneTrace lane(0, count, at(0));
  std::thread writer([&] {
    for (std::uint32_t i = 1; i <= count; ++i) {
      lane.add_transfer(TraceKind::copy, at(i), at(i + 1), i, Route::buffered);
    }
  });
  std::size_t seen = 0;
  while (seen < count) {
    const Trace trace = trace_of(lane);
    EXPECT_GE(trace.events.size(), seen);
    seen = trace.events.size();
    EXPECT_EQ(seen == 0 ? 0 : trace.events.back().bytes, seen);
  }
  writer.join();
}

TEST(TraceHub, keeps_nothing_unless_asked) {
  TraceHub off(0), on(16);
  EXPECT_EQ(off.add_lane(), nullptr);
  ASSERT_NE(on.add_lane(), nullptr);
  ASSERT_NE(on.add_lane(), nullptr);
  EXPECT_EQ(on.snapshot(0).lanes, 2u);
  EXPECT_TRUE(on.snapshot(0).events.empty());
}

TEST(Trace, gives_operations_that_overlap_rows_of_their_own) {
  Trace trace{.lanes = 1, .dropped = 7};
  for (const double begin : {1.0, 1.5, 2.0}) {
    trace.events.push_back({.begin_seconds = begin, .end_seconds = begin + 1, .bytes = 1, .kind = TraceKind::storage});
  }
  const std::string text = trace.to_chrome_json();
  EXPECT_NE(text.find(R"("dropped":7)"), std::string::npos);
  EXPECT_NE(text.find(R"("tid":1,"name":"storage","ts":1000000.000,"dur":1000000.000)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("tid":2,"name":"storage","ts":1500000.000)"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("tid":1,"name":"storage","ts":2000000.000)"), std::string::npos) << text;
}

}  // namespace

}  // namespace penstock::core
