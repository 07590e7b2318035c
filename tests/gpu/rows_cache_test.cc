// Gathers inside CUDA graphs, of rows some of which are in GPU memory.
#include <atomic>
#include <limits>
#include <set>
#include <thread>

#include "gpu/rows_plan_test.h"

namespace penstock::test {
namespace {

constexpr std::uint64_t ample_bytes = 16 << 20;

class RowsCaches : public RowsPlans {
 protected:
  void SetUp() override {
    RowsPlans::SetUp();
    if (IsSkipped()) return;
    if (gpu().kernels().find("rows_find") == nullptr) GTEST_SKIP() << "there are no kernels";
  }
  RowsPlan plan_with_cache(std::vector<const PlanTable*> tables, std::uint64_t bytes = ample_bytes,
                           bool zeros_for_missing = false) {
    return make_plan(std::move(tables), {.zeros_for_missing = zeros_for_missing, .cache_bytes = bytes});
  }
};

// Few rows often, others seldom, as words are.
void ask_unevenly(PlanGraph& graph, std::size_t table, std::size_t count, std::size_t rows, std::mt19937_64& random) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t among = rows >> random() % 8;
    graph.asked(table)[i] = static_cast<std::int64_t>(random() % std::max<std::uint64_t>(1, among));
  }
}

TEST_F(RowsCaches, keep_rows_for_the_next_round) {
  RowsPlan plan = plan_with_cache({&tables_[0]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 10);
  ASSERT_TRUE(graph.capture(plan).ok());
  for (std::int64_t i = 0; i < 10; ++i) graph.asked(0)[i] = 7 * i;
  for (std::uint64_t round = 0; round < 4; ++round) {
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked());
    EXPECT_EQ(plan.report().hit_rows, 10 * round);
  }
  const RowsPlanReport report = plan.report();
  EXPECT_EQ(report.rounds, 4U);
  EXPECT_EQ(report.rows, 40U);
  EXPECT_GE(report.cache_rows, 3000U) << "the whole table has room";
  EXPECT_LT(report.cache_rows, 3016U) << "and no more than that is taken";
  EXPECT_GE(report.cache_bytes, report.cache_rows * 1024);
  EXPECT_LE(report.cache_bytes, ample_bytes);
}

TEST_F(RowsCaches, are_as_good_as_the_table_whatever_is_asked) {
  // The first table has room for all of its rows, the second for most.
  constexpr std::uint64_t cache_bytes = 6'300'000;
  RowsPlan plan = plan_with_cache({&tables_[0], &tables_[1]}, cache_bytes);
  PlanGraph graph(*context_, own_stream(), {&tables_[0], &tables_[1]}, most_rows);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(21);
  std::set<std::int64_t> seen;
  std::uint64_t hits_of_first = 0;
  const std::uint64_t replays = replays_wanted();
  for (std::uint64_t i = 0; i < replays; ++i) {
    for (std::size_t table = 0; table < 2; ++table) {
      ask_unevenly(graph, table, most_rows, tables_[table].rows, random);
    }
    for (std::size_t at = 0; at < most_rows; ++at) hits_of_first += seen.contains(graph.asked(0)[at]) ? 1 : 0;
    seen.insert(graph.asked(0), graph.asked(0) + most_rows);
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked()) << "replay " << i;
  }
  EXPECT_TRUE(plan.check().ok());
  const RowsPlanReport report = plan.report();
  EXPECT_EQ(report.rows, replays * 2 * most_rows);
  EXPECT_LE(report.hit_rows, hits_of_first + replays * most_rows);
  // Blocks of a GPU may want the same set at once, and one of them goes without.
  EXPECT_GE(report.hit_rows, hits_of_first * (fake_ ? 100 : 90) / 100);
  EXPECT_LE(report.cache_bytes, cache_bytes);
}

TEST_F(RowsCaches, make_room_for_rows_that_are_wanted_now) {
  RowsPlan plan = plan_with_cache({&tables_[0]}, 400'000);
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, most_rows);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(20);
  std::uint64_t before = 0;
  const std::uint64_t replays = std::max<std::uint64_t>(150, replays_wanted() / 2);  // so that rows come again
  for (std::uint64_t i = 0; i < replays; ++i) {
    // What is wanted often moves on through the table.
    ask_unevenly(graph, 0, most_rows, 1000, random);
    for (std::size_t at = 0; at < most_rows; ++at) {
      graph.asked(0)[at] = (graph.asked(0)[at] + static_cast<std::int64_t>(2000 * i / replays)) % 3000;
    }
    if (i == replays * 3 / 4) before = plan.report().hit_rows;
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked()) << "replay " << i;
  }
  const std::uint64_t late = plan.report().hit_rows - before;
  EXPECT_GT(late, (replays - replays * 3 / 4) * most_rows / 2) << "most are there, in the last quarter as well";
}

TEST_F(RowsCaches, are_shared_by_graphs_that_run_at_once) {
  // So few sets that all graphs want the same ones.
  RowsPlan plan = plan_with_cache({&tables_[0]}, 60'000);
  EXPECT_EQ(plan.report().cache_rows, 48U);
  const std::uint64_t replays = std::max<std::uint64_t>(100, replays_wanted() / 10);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i, stream = own_stream()] {
      const OwnContext current(gpu());
      const std::size_t count = 10 + 40 * i;
      PlanGraph graph(*context_, stream, {&tables_[0]}, count);
      ASSERT_TRUE(graph.capture(plan, cuda::cu_capture_mode_thread_local).ok());
      std::mt19937_64 random(i);
      for (std::uint64_t replay = 0; replay < replays; ++replay) {
        ask_unevenly(graph, 0, count, 200, random);
        graph.replay();
        ASSERT_TRUE(graph.holds_what_was_asked()) << "replay " << replay << " of graph " << i;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(plan.report().rounds, 3 * replays);
  EXPECT_EQ(plan.report().failed_gathers, 0U);
  EXPECT_GT(plan.report().hit_rows, 0U);
}

TEST_F(RowsCaches, work_on_a_stream_without_a_graph) {
  RowsPlan plan = plan_with_cache({&tables_[1]});
  const cuda::CuStream stream = own_stream();
  std::vector<std::unique_ptr<PlanGraph>> rounds;
  std::mt19937_64 random(22);
  Blocker earlier(gpu(), stream);
  for (int i = 0; i < 6; ++i) {
    rounds.push_back(std::make_unique<PlanGraph>(*context_, stream, std::vector<const PlanTable*>{&tables_[1]}, 20));
    ask_unevenly(*rounds.back(), 0, 20, 100, random);
    ASSERT_TRUE(rounds.back()->put(plan).ok());
  }
  earlier.let_go();
  rounds.back()->wait();
  for (const auto& round : rounds) EXPECT_TRUE(round->holds_what_was_asked());
  for (int i = 0; i < 20; ++i) {
    ask_unevenly(*rounds[0], 0, 20, 100, random);
    ASSERT_TRUE(rounds[0]->put(plan).ok());
    rounds[0]->wait();
    ASSERT_TRUE(rounds[0]->holds_what_was_asked());
  }
  EXPECT_GT(plan.report().hit_rows, 20 * 10U);
}

TEST_F(RowsCaches, keep_nothing_of_a_gather_that_failed) {
  RowsPlan plan = plan_with_cache({&tables_[0], &tables_[1]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0], &tables_[1]}, 8);
  ASSERT_TRUE(graph.capture(plan).ok());
  for (std::int64_t i = 0; i < 8; ++i) graph.asked(0)[i] = graph.asked(1)[i] = 100 + i;
  graph.replay();
  ASSERT_TRUE(graph.holds_what_was_asked());
  std::uint64_t hits = 0;
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{3000}, INT64_MIN, INT64_MAX}) {
    // Two are there, one is none, the others would be new.
    for (std::int64_t i = 2; i < 8; ++i) graph.asked(0)[i] = 200 + i;
    graph.asked(0)[5] = bad;
    graph.replay();
    hits += 2 + 8;
    EXPECT_EQ(plan.report().hit_rows, hits);
    EXPECT_EQ(graph.status(0), Code::out_of_range);
    EXPECT_TRUE(graph.holds_zeros(0)) << "those that are there, too";
    EXPECT_EQ(graph.status(1), Code::ok) << "the other table is not concerned";
    const Status status = plan.check();
    EXPECT_EQ(status.error().code, Code::out_of_range);
    EXPECT_NE(status.error().message.find("the number " + std::to_string(bad) + " at position 5"), std::string::npos)
        << status.error().message;
  }
  graph.asked(0)[5] = 205;
  graph.replay();
  EXPECT_TRUE(graph.holds_what_was_asked());
  EXPECT_EQ(plan.report().hit_rows, hits + 2 + 8) << "of those that failed none was kept";
}

TEST_F(RowsCaches, keep_no_rows_of_zeros) {
  RowsPlan plan = plan_with_cache({&tables_[0]}, ample_bytes, true);
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 4);
  ASSERT_TRUE(graph.capture(plan).ok());
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const std::array<std::int64_t, 4> numbers = {5, -1, 3000, 6};
    std::ranges::copy(numbers, graph.asked(0));
    graph.replay();
    EXPECT_EQ(graph.status(0), Code::ok);
    EXPECT_TRUE(same_bytes(tables_[0].row(5), graph.row(0, 0)));
    EXPECT_TRUE(same_bytes(std::vector<std::byte>(1024), graph.row(0, 1)));
    EXPECT_TRUE(same_bytes(std::vector<std::byte>(1024), graph.row(0, 2)));
    EXPECT_TRUE(same_bytes(tables_[0].row(6), graph.row(0, 3)));
    EXPECT_EQ(plan.report().missing_rows, 2 * round);
    EXPECT_EQ(plan.report().hit_rows, 2 * (round - 1));
  }
}

TEST_F(RowsCaches, give_nothing_of_a_file_that_has_changed) {
  for (const bool is_cut : {false, true}) {
    const std::string name = is_cut ? "cut" : "written";
    PlanTable table = make_table(name, 4096, 300, {});
    RowsPlan plan = plan_with_cache({&table});
    PlanGraph graph(*context_, own_stream(), {&table}, 8);
    ASSERT_TRUE(graph.capture(plan).ok());
    for (int i = 0; i < 2; ++i) {
      for (std::int64_t at = 0; at < 8; ++at) graph.asked(0)[at] = at;
      graph.replay();
      ASSERT_TRUE(graph.holds_what_was_asked());
    }
    ASSERT_EQ(plan.report().hit_rows, 8U);
    if (is_cut) {
      ASSERT_EQ(::truncate(folder_.path(name).c_str(), 4096 * 100), 0);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that its time of change is another
      write_file(folder_.path(name), content(99, 0, 4096 * 300));
    }
    for (int i = 0; i < 2; ++i) {
      graph.replay();
      EXPECT_EQ(graph.status(0), is_cut ? Code::truncated : Code::changed);
      EXPECT_TRUE(graph.holds_zeros(0));
    }
    EXPECT_EQ(plan.report().hit_rows, 24U) << "all rows were there";
    EXPECT_EQ(plan.check().error().code, is_cut ? Code::truncated : Code::changed);
  }
}

TEST_F(RowsCaches, need_no_answer_for_a_while_where_all_rows_are_there) {
  RowsPlan plan = make_plan({&tables_[0], &tables_[1]}, {.cache_bytes = ample_bytes, .unasked_seconds = 1000});
  PlanGraph graph(*context_, own_stream(), {&tables_[0], &tables_[1]}, 10);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(25);
  std::uint64_t unasked = 0;
  std::uint64_t asked = 0;
  for (int i = 0; i < 20; ++i) {
    const bool is_new = i % 5 == 0;
    if (is_new) {
      for (std::size_t at = 0; at < 10; ++at) {
        graph.asked(0)[at] = static_cast<std::int64_t>(16 * i + at);
        graph.asked(1)[at] = static_cast<std::int64_t>(random() % 2);
      }
    }
    ++(is_new ? asked : unasked);
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked()) << "replay " << i;
    EXPECT_EQ(plan.report().unasked_rounds, unasked);
    EXPECT_EQ(plan.report().rounds, asked);
    EXPECT_EQ(plan.report().rows, (asked + unasked) * 20);
  }
  // One that fails is asked for again.
  graph.asked(0)[3] = -1;
  for (int i = 0; i < 2; ++i) {
    graph.replay();
    EXPECT_EQ(graph.status(0), Code::out_of_range);
    EXPECT_TRUE(graph.holds_zeros(0));
    EXPECT_EQ(plan.check().error().code, Code::out_of_range);
  }
  graph.asked(0)[3] = graph.asked(0)[4];
  graph.replay();
  EXPECT_TRUE(graph.holds_what_was_asked());
  EXPECT_EQ(plan.report().rounds, asked + 3) << "so that nothing is believed after an error";
  graph.replay();
  EXPECT_EQ(plan.report().unasked_rounds, unasked + 1);
  // What another capture was told is not believed, of whatever tables it was.
  graph.destroy();
  ASSERT_TRUE(graph.capture(plan).ok());
  graph.replay();
  EXPECT_TRUE(graph.holds_what_was_asked());
  EXPECT_EQ(plan.report().rounds, asked + 4);
  EXPECT_EQ(plan.report().unasked_rounds, unasked + 1);
}

TEST_F(RowsCaches, notice_a_file_that_has_changed_when_they_ask) {
  PlanTable table = make_table("later", 4096, 300, {});
  RowsPlan plan = make_plan({&table}, {.cache_bytes = ample_bytes, .unasked_seconds = 0.3});
  PlanGraph graph(*context_, own_stream(), {&table}, 8);
  ASSERT_TRUE(graph.capture(plan).ok());
  for (std::int64_t at = 0; at < 8; ++at) graph.asked(0)[at] = at;
  graph.replay();
  ASSERT_TRUE(graph.holds_what_was_asked());
  ASSERT_EQ(::truncate(folder_.path("later").c_str(), 4096 * 100), 0);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (graph.status(0) == Code::ok && std::chrono::steady_clock::now() < until) {
    ASSERT_TRUE(graph.holds_what_was_asked()) << "as it was";
    graph.replay();
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(graph.status(0), Code::truncated);
    EXPECT_TRUE(graph.holds_zeros(0));
    graph.replay();
  }
  EXPECT_GE(plan.report().rounds, 3U);
}

TEST_F(RowsCaches, that_ask_seldom_are_shared_by_graphs_that_run_at_once) {
  RowsPlan plan = make_plan({&tables_[0]}, {.cache_bytes = 200'000, .unasked_seconds = 0.005});
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i, stream = own_stream()] {
      const OwnContext current(gpu());
      PlanGraph graph(*context_, stream, {&tables_[0]}, 12);
      ASSERT_TRUE(graph.capture(plan, cuda::cu_capture_mode_thread_local).ok());
      std::mt19937_64 random(i);
      for (int replay = 0; replay < 300; ++replay) {
        // Few that all have room, and now and then others.
        for (std::size_t at = 0; at < 12; ++at) {
          graph.asked(0)[at] = static_cast<std::int64_t>(random() % (replay % 20 == 0 ? 3000 : 40));
        }
        graph.replay();
        ASSERT_TRUE(graph.holds_what_was_asked()) << "replay " << replay << " of graph " << i;
      }
    });
  }
  threads.clear();
  const RowsPlanReport report = plan.report();
  EXPECT_EQ(report.rounds + report.unasked_rounds, 900U);
  EXPECT_EQ(report.rows, 900 * 12U);
  EXPECT_EQ(report.failed_gathers, 0U);
}

TEST_F(RowsCaches, outlive_their_plan_and_give_nothing) {
  let_frees_wait();
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
  std::mt19937_64 random(23);
  {
    RowsPlan plan = plan_with_cache({&tables_[0]});
    ASSERT_TRUE(graph.capture(plan).ok());
    graph.ask(random);
    for (int i = 0; i < 2; ++i) graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked());
  }
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    EXPECT_EQ(graph.status(0), Code::closed);
    EXPECT_TRUE(graph.holds_zeros(0));
  }
}

TEST_F(RowsCaches, have_rows_of_any_size_and_memory_of_any_alignment) {
  for (const std::size_t row_bytes : {1, 3, 8, 20, 48, 520, 1001, 5000}) {
    const PlanTable table = make_table("of" + std::to_string(row_bytes), row_bytes, 500, {});
    for (const std::size_t shift : {0, 1, 4, 8}) {
      RowsPlan plan = plan_with_cache({&table}, 100'000 + 20 * row_bytes);
      std::vector<std::uint16_t> numbers(60);
      const Buffer on_gpu = context_->allocate(Domain::cuda(0), numbers.size() * 2).value();
      const Buffer rows = context_->allocate(Domain::cuda(0), numbers.size() * row_bytes + shift).value();
      const Region memory = rows.region().part(shift, numbers.size() * row_bytes);
      const cuda::CuStream stream = own_stream();
      std::mt19937_64 random(row_bytes + shift);
      for (int round = 0; round < 5; ++round) {
        for (auto& number : numbers) number = static_cast<std::uint16_t>(random() % 500 >> random() % 4);
        fill(on_gpu.region(), std::as_bytes(std::span(numbers)));
        ASSERT_TRUE(
            plan.enqueue({stream}, {.numbers = {RowNumbers::Type::u16, on_gpu.region()}, .memory = memory}).ok());
        ASSERT_EQ(wait_for(stream), cuda::cu_success);
        const std::vector<std::byte> bytes = bytes_of(memory);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          ASSERT_TRUE(same_bytes(table.row(numbers[i]), std::span(bytes).subspan(i * row_bytes, row_bytes)))
              << "row " << numbers[i] << " of " << row_bytes << " bytes, shifted by " << shift << ", in round "
              << round;
        }
      }
      // Warps that meet in a set put one row in: on a real GPU, with few sets, it may be that none is asked for again.
      const RowsPlanReport report = plan.report();
      const bool may_have_none = !fake_ && report.cache_rows < 500;
      EXPECT_TRUE(report.hit_rows > 0 || may_have_none);
      EXPECT_TRUE(plan.check().ok());
    }
  }
}

TEST_F(RowsCaches, take_numbers_of_any_type) {
  RowsPlan plan = plan_with_cache({&tables_[0]}, ample_bytes, true);
  const cuda::CuStream stream = own_stream();
  const auto check = [&]<typename Number>(RowNumbers::Type type, Number none) {
    const std::vector<Number> numbers = {3, 100, 3, none, 0, 127};
    const Buffer on_gpu = context_->allocate(Domain::cuda(0), numbers.size() * sizeof(Number)).value();
    const Buffer rows = context_->allocate(Domain::cuda(0), numbers.size() * 1024).value();
    fill(on_gpu.region(), std::as_bytes(std::span(numbers)));
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(plan.enqueue({stream}, {.numbers = {type, on_gpu.region()}, .memory = rows.region()}).ok());
      ASSERT_EQ(wait_for(stream), cuda::cu_success);
      const std::vector<std::byte> bytes = bytes_of(rows.region());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto row = std::span(bytes).subspan(i * 1024, 1024);
        const bool is_row = i != 3 || static_cast<std::uint64_t>(none) < 3000;
        ASSERT_TRUE(is_row ? same_bytes(tables_[0].row(static_cast<std::int64_t>(numbers[i])), row)
                           : same_bytes(std::vector<std::byte>(1024), row))
            << "at " << i << " of type " << static_cast<int>(type);
      }
    }
  };
  check(RowNumbers::Type::i8, std::int8_t{-1});
  check(RowNumbers::Type::u8, std::uint8_t{255});
  check(RowNumbers::Type::i16, std::int16_t{-3000});
  check(RowNumbers::Type::u16, std::uint16_t{65535});
  check(RowNumbers::Type::i32, std::int32_t{INT32_MIN});
  check(RowNumbers::Type::u32, std::uint32_t{UINT32_MAX});
  check(RowNumbers::Type::i64, std::int64_t{INT64_MIN});
  check(RowNumbers::Type::u64, std::uint64_t{UINT64_MAX});
  EXPECT_EQ(plan.report().missing_rows, 14U);
}

TEST_F(RowsCaches, hold_long_rounds) {
  const PlanTable table = make_table("long", 64, 40'000, {});
  const std::size_t count = 30'000;
  RowsPlan plan = RowsPlan::make(Domain::cuda(0), {&table.opened, 1}, count, {.cache_bytes = 1 << 20}).value();
  PlanGraph graph(*context_, own_stream(), {&table}, count);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(24);
  for (int i = 0; i < 4; ++i) {
    ask_unevenly(graph, 0, count, table.rows, random);
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked());
  }
  EXPECT_GT(plan.report().hit_rows, 0U);
}

TEST_F(RowsCaches, that_make_no_sense_are_refused) {
  const auto too_small = RowsPlan::make(Domain::cuda(0), {&tables_[0].opened, 1}, 5, {.cache_bytes = 16 * 1024});
  EXPECT_EQ(too_small.error().code, Code::invalid_argument);
  EXPECT_NE(too_small.error().message.find("too small"), std::string::npos) << too_small.error().message;
  const auto too_large =
      RowsPlan::make(Domain::cuda(0), {&tables_[0].opened, 1}, UINT64_MAX / 4096, {.cache_bytes = 1 << 20});
  EXPECT_FALSE(too_large.ok());
  for (const RowsPlanOptions& options :
       {RowsPlanOptions{.unasked_seconds = 1}, RowsPlanOptions{.cache_bytes = ample_bytes, .unasked_seconds = -1},
        RowsPlanOptions{.cache_bytes = ample_bytes, .unasked_seconds = std::numeric_limits<double>::quiet_NaN()}}) {
    const auto refused = RowsPlan::make(Domain::cuda(0), {&tables_[0].opened, 1}, 5, options);
    EXPECT_EQ(refused.error().code, Code::invalid_argument);
  }
  RowsPlan plan = plan_with_cache({&tables_[0]});
  const Buffer memory = context_->allocate(Domain::cuda(0), 8 * 1024 + 100).value();
  const RowNumbers shifted(RowNumbers::Type::i64, memory.region().part(1, 64));
  const auto refused =
      plan.enqueue({own_stream()}, {.numbers = shifted, .memory = memory.region().part(100, 8 * 1024)});
  EXPECT_EQ(refused.error().code, Code::invalid_argument);
  EXPECT_NE(refused.error().message.find("aligned"), std::string::npos) << refused.error().message;
}

TEST_F(RowsCaches, are_given_up_where_there_is_no_gpu_memory) {
  PENSTOCK_NEEDS_FAKE();
  fake_->fail_call("cuMemAlloc_v2", 1, cuda::cu_out_of_memory, 1);
  const auto refused = RowsPlan::make(Domain::cuda(0), {&tables_[0].opened, 1}, 5, {.cache_bytes = ample_bytes});
  EXPECT_FALSE(refused.ok());
}

// Run without kernels, too (CMakeLists.txt).
TEST_F(RowsPlans, caches_are_refused_by_name_where_the_gpu_has_no_kernels) {
  if (gpu().kernels().find("rows_find") != nullptr) GTEST_SKIP() << "it has";
  const auto refused = RowsPlan::make(Domain::cuda(0), {&tables_[0].opened, 1}, 5, {.cache_bytes = ample_bytes});
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_NE(refused.error().message.find("rows_find"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace penstock::test
