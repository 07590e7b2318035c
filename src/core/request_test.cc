#include "core/request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "core/environment.h"
#include "core/test_scripted_engine.h"
#include "memory/allocation.h"

namespace penstock::core {
namespace {

using engine::OpKind;

constexpr std::uint64_t unit_bytes = 1 << 20;

Request::Claim next_claim(Request& request) {
  return request.claim_units(request.parts[0]);
}

class RequestTest : public testing::Test {
 protected:
  RequestTest() {
    script_.name = "scripted";
    script_.info = {.name = "x",
                    .size_bytes = 64 * unit_bytes,
                    .alignments = {.offset = 512, .memory = 512},
                    .writable = true,
                    .direct = true,
                    .page_cache = true};
    script_.size_now = script_.info.size_bytes;
    options_.lanes = 4;
  }

  penstock::Store open() {
    if (!environment_) {
      auto table = std::make_shared<engine::Table>();
      table->push_back(std::make_unique<ScriptedEngine>(script_));
      environment_ = std::make_shared<Environment>(table, options_, Machine{});
    }
    return client::Access::store(StoreEntry::open(*environment_, "x", {}).value());
  }
  Range range(const penstock::Store& store, std::uint64_t offset, std::uint64_t length) const {
    return {&store, offset, Region::host(memory_->region().data, length)};
  }
  std::shared_ptr<Request> create(const std::vector<Range>& ranges, const RequestSettings& settings = {.lanes = 4},
                                  const RequestOptions& options = {}) {
    return Request::create(environment_, ranges, settings, options).value();
  }
  // Each unit as {first range, ranges, begin, length}.
  using Units = std::vector<std::array<std::uint64_t, 4>>;
  static Units units_of(const Request& request) {
    Units units;
    for (const Unit& unit : request.units) units.push_back({unit.first, unit.count, unit.begin, unit.length});
    return units;
  }

  Script script_;
  Options options_;
  std::shared_ptr<Environment> environment_;
  const std::unique_ptr<memory::Allocation> memory_ =
      memory::Allocation::create({.domain = Domain::host(), .size_bytes = 32 * unit_bytes}).value();
};

TEST_F(RequestTest, cuts_a_long_range_at_multiples_of_a_unit) {
  const penstock::Store store = open();
  const auto request = create({range(store, unit_bytes - 100, 2 * unit_bytes)});
  EXPECT_EQ(units_of(*request),
            (Units{{0, 1, 0, 100}, {0, 1, 100, unit_bytes}, {0, 1, unit_bytes + 100, unit_bytes - 100}}));
  EXPECT_EQ(request->parts.size(), 3U) << "no lane is there for nothing";
}

TEST_F(RequestTest, joins_short_ranges_of_one_store_up_to_a_unit) {
  const penstock::Store store = open();
  const penstock::Store other = open();
  const std::uint64_t half = unit_bytes / 2;
  const auto request = create({range(store, 0, half), range(store, 5 * half, half), range(store, 0, 1),
                               range(other, 0, 1), range(other, 9, 0), range(store, 0, 7)});
  EXPECT_EQ(units_of(*request), (Units{{0, 2, 0, unit_bytes}, {2, 1, 0, 1}, {3, 2, 0, 1}, {5, 1, 0, 7}}));
  EXPECT_EQ(request->stores.size(), 2U);
  EXPECT_EQ(request->total_bytes, unit_bytes + 9);
}

TEST_F(RequestTest, joins_no_more_ranges_than_a_lane_may_take_at_once) {
  const penstock::Store store = open();
  const auto request = create(std::vector<Range>(1000, range(store, 0, 1)));
  ASSERT_EQ(request->units.size(), 2U);
  EXPECT_EQ(request->units[0].count, 512U);
  EXPECT_EQ(request->units[1].count, 488U);
}

TEST_F(RequestTest, has_one_part_and_no_unit_where_there_is_nothing_to_do) {
  const penstock::Store store = open();
  for (const auto& ranges : {std::vector<Range>{}, std::vector<Range>{range(store, 0, 0)}}) {
    const auto request = create(ranges);
    EXPECT_EQ(request->units.size(), 0U);
    EXPECT_EQ(request->parts.size(), 1U);
    EXPECT_FALSE(request->has_more_units());
  }
}

TEST_F(RequestTest, reads_short_ranges_past_the_page_cache_by_as_many_lanes_as_the_queues_of_the_disk_serve) {
  script_.info.device = "8:0";
  script_.info.queues = 1;
  const penstock::Store store = open();
  const auto rows = [&](std::uint64_t row_bytes) {
    return std::vector<Range>(20 * unit_bytes / row_bytes, range(store, 0, row_bytes));
  };
  const auto lanes = [&](std::uint64_t row_bytes, Cache cache) {
    const auto request = create(rows(row_bytes), {.lanes = 16}, {.cache = cache});
    return std::pair(request->parts.size(), request->first_lane.has_value());
  };
  EXPECT_EQ(lanes(4096, Cache::bypass), std::pair(std::size_t{4}, true)) << "all such requests by the same";
  EXPECT_EQ(lanes(4096, Cache::automatic), std::pair(std::size_t{16}, false)) << "they may be cached";
  EXPECT_EQ(lanes(64 << 10, Cache::bypass), std::pair(std::size_t{16}, false)) << "they are not short";
  const auto few = create(std::vector<Range>(16, range(store, 0, 4096)), {.lanes = 16}, {.cache = Cache::bypass});
  EXPECT_FALSE(few->first_lane) << "they are one lane's";

  script_.info.queues = 3;
  const penstock::Store with_more = open();
  const auto request =
      create(std::vector<Range>(5120, range(with_more, 0, 4096)), {.lanes = 16}, {.cache = Cache::bypass});
  EXPECT_EQ(request->parts.size(), 12U);
  script_.info.queues = 0;
  const penstock::Store untold = open();
  EXPECT_EQ(
      create(std::vector<Range>(20480, range(untold, 0, 4096)), {.lanes = 16}, {.cache = Cache::bypass})->parts.size(),
      16U);
}

TEST_F(RequestTest, gives_each_unit_to_one_lane_in_order) {
  const penstock::Store store = open();
  const auto request = create({range(store, 0, 8 * unit_bytes)});
  std::uint32_t next = 0;
  while (request->has_more_units()) {
    const auto claim = next_claim(*request);
    EXPECT_EQ(claim.begin, next);
    EXPECT_EQ(claim.end, next + 1) << "all lanes together read a disk in order";
    next = claim.end;
  }
  EXPECT_EQ(next, 8U);
  const auto none = next_claim(*request);
  EXPECT_EQ(none.begin, none.end);
}

TEST_F(RequestTest, gives_several_units_at_once_where_long_pieces_are_better) {
  const penstock::Store store = open();
  const auto request = create({range(store, 0, 6 * unit_bytes)});
  request->expect(engine::Path::cached);
  const auto first = next_claim(*request);
  EXPECT_EQ(first.begin, 0U);
  EXPECT_EQ(first.end, 4U);
  const auto second = next_claim(*request);
  EXPECT_EQ(second.begin, 4U);
  EXPECT_EQ(second.end, 6U) << "no more than there are";
  const auto none = next_claim(*request);
  EXPECT_EQ(none.begin, none.end);
}

TEST_F(RequestTest, gives_a_unit_at_once_where_the_kernel_reads_ahead) {
  const auto claimed_at_once = [&] {
    const penstock::Store store = open();
    const auto request = create({range(store, 0, 8 * unit_bytes)});
    request->expect(engine::Path::buffered);
    const auto first = next_claim(*request);
    return first.end - first.begin;
  };
  EXPECT_EQ(claimed_at_once(), 1U);
  script_.info.locality = Locality::network;
  EXPECT_EQ(claimed_at_once(), 4U) << "its server likes long operations";
}

TEST_F(RequestTest, gives_groups_of_short_ranges_one_by_one_whatever_is_better_for_long_ones) {
  const penstock::Store store = open();
  std::vector<Range> ranges(1100, range(store, 0, 1));
  ranges.push_back(range(store, 0, 6 * unit_bytes));
  const auto request = create(ranges);
  request->expect(engine::Path::cached);
  std::vector<std::uint32_t> ends;
  for (auto claim = next_claim(*request); claim.begin != claim.end; claim = next_claim(*request)) {
    ends.push_back(claim.end);
  }
  EXPECT_EQ(ends, (std::vector<std::uint32_t>{1, 2, 3, 7, 9}));
}

TEST_F(RequestTest, gives_what_is_transformed_one_by_one_and_plain_units_between_that_several_at_once) {
  struct Nothing : Transform {
    Status by_cpu(const Piece&) const override { return {}; }
  };
  const penstock::Store store = open();
  const Stored stored{.transform = std::make_shared<Nothing>(), .bytes = 4096};
  Range made = range(store, 0, 2 * unit_bytes);
  made.stored = &stored;
  const auto request = create({made, made, range(store, 0, 6 * unit_bytes), made, range(store, 0, 3 * unit_bytes)});
  request->expect(engine::Path::cached);
  std::vector<std::uint32_t> ends;
  for (auto claim = next_claim(*request); claim.begin != claim.end; claim = next_claim(*request)) {
    ends.push_back(claim.end);
  }
  EXPECT_EQ(ends, (std::vector<std::uint32_t>{1, 2, 6, 8, 9, 12}));
  const auto none = next_claim(*request);
  EXPECT_EQ(none.begin, none.end);
}

TEST_F(RequestTest, asks_about_each_unit_once_and_before_a_lane_reads_near_in_front_of_it) {
  constexpr std::uint32_t ahead = 16;
  std::array<std::atomic<int>, 64> asked{};
  script_.resident_bytes = [&](std::uint64_t offset, std::uint64_t length) {
    const std::uint64_t unit = offset / unit_bytes;
    ++asked[unit];
    return unit % 3 == 0 ? length : 0;
  };
  const penstock::Store store = open();
  const auto request = create({range(store, 0, 32 * unit_bytes), range(store, 32 * unit_bytes, 32 * unit_bytes)});
  std::atomic<int> wrong{0};
  std::vector<std::thread> lanes;
  for (int i = 0; i < 4; ++i) {
    lanes.emplace_back([&] {
      for (auto claim = next_claim(*request); claim.begin != claim.end; claim = next_claim(*request)) {
        request->survey.reach(*request, claim.begin, claim.end);
        for (std::uint32_t at = claim.begin; at < std::min(claim.end + ahead, 64U); ++at) {
          const Residency expected = at % 3 == 0 ? Residency::all : Residency::none;
          if (request->units[at].residency != expected) ++wrong;
        }
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(std::all_of(asked.begin(), asked.end(), [](int times) { return times == 1; }));
}

TEST_F(RequestTest, gives_no_unit_to_two_lanes) {
  const penstock::Store store = open();
  const auto request = create(std::vector<Range>(200'000, range(store, 0, 1)));
  std::vector<std::atomic<int>> claimed(request->units.size());
  std::vector<std::thread> lanes;
  for (int i = 0; i < 3; ++i) {
    lanes.emplace_back([&] {
      for (auto claim = next_claim(*request); claim.begin != claim.end; claim = next_claim(*request)) {
        request->expect(claim.begin % 2 == 0 ? engine::Path::cached : engine::Path::direct);
        for (std::uint32_t unit = claim.begin; unit < claim.end; ++unit) ++claimed[unit];
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  EXPECT_TRUE(std::all_of(claimed.begin(), claimed.end(), [](int count) { return count == 1; }));
}

TEST_F(RequestTest, keeps_the_first_reason_to_stop) {
  const penstock::Store store = open();
  const auto request = create({range(store, 0, 4096)});
  EXPECT_EQ(request->stop_code(), Code::ok);
  request->stop(Code::timed_out);
  request->stop(Code::cancelled);
  EXPECT_EQ(request->stop_code(), Code::timed_out);
  Request::end_unstarted(request);
  EXPECT_EQ(request->outcome(), Outcome::failed);
  EXPECT_EQ(request->report().error->code, Code::timed_out);
}

TEST_F(RequestTest, that_found_no_memory_says_so) {
  const penstock::Store store = open();
  const auto request = create({range(store, 0, 4096)});
  request->stop(Code::out_of_memory);
  Request::end_unstarted(request);
  EXPECT_EQ(request->outcome(), Outcome::failed);
  EXPECT_EQ(request->report().error->code, Code::out_of_memory);
}

TEST_F(RequestTest, ends_once_when_its_last_part_has_left) {
  const penstock::Store store = open();
  const auto request = create({range(store, 0, 3 * unit_bytes)}, {.lanes = 3});
  ASSERT_EQ(request->parts.size(), 3U);
  EXPECT_FALSE(request->leave());
  EXPECT_FALSE(request->leave());
  EXPECT_TRUE(request->leave());
  for (Part& part : request->parts) part.bytes = unit_bytes;
  EXPECT_FALSE(request->conclude(request, Clock::now())) << "nobody sleeps until then";
  EXPECT_EQ(request->outcome(), Outcome::done);
}

TEST_F(RequestTest, writes_edges_and_then_flushes_when_all_is_written) {
  const penstock::Store store = open();
  const auto request = create({range(store, 0, 8192)}, {.kind = OpKind::write}, {.durable = true});
  Part& part = request->parts[0];
  part.bytes = 4096;
  EXPECT_EQ(request->next_stage(Stage::transfer), std::nullopt) << "what has failed is not flushed";
  part.edges.push_back({0, 4096, 4096});
  EXPECT_EQ(request->next_stage(Stage::transfer), Stage::edges);
  EXPECT_EQ(request->next_stage(Stage::edges), std::nullopt);
  part.bytes = 8192;
  EXPECT_EQ(request->next_stage(Stage::edges), Stage::flush);
  EXPECT_EQ(request->next_stage(Stage::flush), std::nullopt);
  request->stop(Code::cancelled);
  EXPECT_EQ(request->next_stage(Stage::transfer), std::nullopt);
  EXPECT_EQ(request->next_stage(Stage::edges), std::nullopt);
}

TEST_F(RequestTest, flushes_only_writes_that_are_to_be_durable) {
  const penstock::Store store = open();
  for (const OpKind kind : {OpKind::write, OpKind::read}) {
    const auto request = create({range(store, 0, 8192)}, {.kind = kind}, {.durable = kind == OpKind::read});
    request->parts[0].bytes = 8192;
    EXPECT_EQ(request->next_stage(Stage::transfer), std::nullopt);
  }
}

TEST_F(RequestTest, asks_servers_last_what_a_long_read_was_of) {
  script_.info.locality = Locality::network;
  script_.info.writable = false;
  script_.make_queue = [](const engine::QueueOptions&) { return std::make_unique<CallQueue>(); };
  const penstock::Store store = open();
  const auto long_read = create({range(store, 0, unit_bytes)});
  EXPECT_EQ(long_read->next_stage(Stage::transfer), std::nullopt) << "not before all is there";
  long_read->parts[0].bytes = unit_bytes;
  EXPECT_EQ(long_read->next_stage(Stage::transfer), Stage::identities);
  EXPECT_EQ(long_read->next_stage(Stage::identities), std::nullopt);
  const auto short_read = create({range(store, 0, 4096)});
  short_read->parts[0].bytes = 4096;
  EXPECT_EQ(short_read->next_stage(Stage::transfer), std::nullopt);
}

TEST_F(RequestTest, refuses_what_can_not_be_before_a_byte_moves) {
  const penstock::Store store = open();
  const penstock::Store closed;
  const auto code = [&](const Range& wrong, OpKind kind = OpKind::read) {
    const std::array ranges{range(store, 0, 1), wrong};
    return Request::create(environment_, ranges, {.kind = kind}).error().code;
  };
  EXPECT_EQ(code({nullptr, 0, Region::host(memory_->region().data, 1)}), Code::invalid_argument);
  EXPECT_EQ(code({&closed, 0, Region::host(memory_->region().data, 1)}), Code::invalid_argument);
  EXPECT_EQ(code({&store, 0, Region::host(nullptr, 1)}), Code::invalid_argument);
  EXPECT_EQ(code({&store, UINT64_MAX, Region::host(memory_->region().data, 1)}), Code::invalid_argument);
  EXPECT_EQ(code(range(store, script_.size_now, 1)), Code::out_of_range);
  script_.info.writable = false;
  const penstock::Store read_only = open();
  EXPECT_EQ(code(range(read_only, 0, 1), OpKind::write), Code::read_only);
}

}  // namespace
}  // namespace penstock::core
