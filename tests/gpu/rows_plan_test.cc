// Gathers inside CUDA graphs, and in the order of streams.
#include "gpu/rows_plan_test.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "cuda/responder.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

TEST_F(RowsPlans, a_graph_is_replayed_with_other_numbers_each_time) {
  RowsPlan plan = make_plan({&tables_[0], &tables_[1]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0], &tables_[1]}, most_rows);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(1);
  const std::uint64_t replays = replays_wanted();
  for (std::uint64_t i = 0; i < replays; ++i) {
    graph.ask(random);
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked()) << "replay " << i;
  }
  EXPECT_TRUE(plan.check().ok());
  EXPECT_EQ(plan.report().rounds, replays);
  EXPECT_EQ(plan.report().rows, replays * 2 * most_rows);
}

TEST_F(RowsPlans, several_graphs_run_at_once) {
  RowsPlan plan = make_plan({&tables_[0]});
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const OwnContext current(gpu());
      PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 10 + 20 * i);
      std::mt19937_64 random(i);
      for (int captures = 0; captures < 2; ++captures) {
        ASSERT_TRUE(graph.capture(plan, cuda::cu_capture_mode_thread_local).ok());
        for (int replay = 0; replay < 100; ++replay) {
          graph.ask(random);
          graph.replay();
          ASSERT_TRUE(graph.holds_what_was_asked());
        }
        graph.destroy();
      }
    });
  }
  threads.clear();
  EXPECT_EQ(plan.report().rounds, 600U);
  EXPECT_EQ(plan.report().failed_gathers, 0U);
}

TEST_F(RowsPlans, replays_are_queued_one_behind_the_other) {
  RowsPlan plan = make_plan({&tables_[0]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(3);
  graph.ask(random);
  for (int i = 0; i < 50; ++i) graph.launch();
  graph.wait();
  EXPECT_TRUE(graph.holds_what_was_asked());
  EXPECT_EQ(plan.report().rounds, 50U);
}

TEST_F(RowsPlans, threads_that_sleep_are_woken_by_the_graph) {
  RowsPlan plan = make_plan({&tables_[0]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(4);
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(30ms);
    graph.ask(random);
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked());
  }
}

TEST_F(RowsPlans, rounds_go_on_a_stream_without_a_graph) {
  RowsPlan plan = make_plan({&tables_[1]});
  const cuda::CuStream stream = own_stream();
  std::vector<std::unique_ptr<PlanGraph>> rounds;
  std::mt19937_64 random(5);
  Blocker earlier(gpu(), stream);
  for (int i = 0; i < 6; ++i) {
    rounds.push_back(std::make_unique<PlanGraph>(*context_, stream, std::vector<const PlanTable*>{&tables_[1]}, 20));
    rounds.back()->ask(random);
    ASSERT_TRUE(rounds.back()->put(plan).ok());
  }
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(plan.report().rounds, 0U) << "the stream has not come to them";
  earlier.let_go();
  rounds.back()->wait();
  for (const auto& round : rounds) EXPECT_TRUE(round->holds_what_was_asked());
  // Their memory is used again.
  for (int i = 0; i < 20; ++i) {
    rounds[0]->ask(random);
    ASSERT_TRUE(rounds[0]->put(plan).ok());
    rounds[0]->wait();
    ASSERT_TRUE(rounds[0]->holds_what_was_asked());
  }
}

TEST_F(RowsPlans, cold_rows_are_read) {
  const PlanTable cold = make_table("cold", 512, 2000, {.mapping = false});
  RowsPlan plan = make_plan({&cold});
  PlanGraph graph(*context_, own_stream(), {&cold}, 30);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(6);
  for (int i = 0; i < 20; ++i) {
    graph.ask(random);
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked());
  }
  EXPECT_EQ(plan.report().cold_rows, 600U);
}

TEST_F(RowsPlans, a_number_that_is_no_rows_is_told_by_the_status_and_by_the_next_call) {
  RowsPlan plan = make_plan({&tables_[0], &tables_[1]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0], &tables_[1]}, 8);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(7);
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{3000}, INT64_MIN}) {
    graph.ask(random);
    graph.asked(0)[5] = bad;
    graph.replay();
    EXPECT_EQ(graph.status(0), Code::out_of_range);
    EXPECT_TRUE(graph.holds_zeros(0));
    EXPECT_EQ(graph.status(1), Code::ok) << "the other table is not concerned";
    const Status status = plan.check();
    EXPECT_EQ(status.error().code, Code::out_of_range);
    EXPECT_NE(status.error().message.find("at position 5"), std::string::npos) << status.error().message;
    EXPECT_TRUE(plan.check().ok()) << "told once";
  }
  graph.ask(random);
  graph.replay();
  EXPECT_TRUE(graph.holds_what_was_asked());
  EXPECT_EQ(plan.report().failed_gathers, 3U);

  RowsPlan zeros = make_plan({&tables_[0]}, {.zeros_for_missing = true});
  PlanGraph with_zeros(*context_, own_stream(), {&tables_[0]}, 8);
  ASSERT_TRUE(with_zeros.capture(zeros).ok());
  with_zeros.ask(random);
  with_zeros.asked(0)[5] = -1;
  with_zeros.replay();
  EXPECT_EQ(with_zeros.status(0), Code::ok);
  EXPECT_TRUE(same_bytes(std::vector<std::byte>(1024), with_zeros.row(0, 5)));
  EXPECT_TRUE(same_bytes(tables_[0].row(with_zeros.asked(0)[6]), with_zeros.row(0, 6)));
  EXPECT_EQ(zeros.report().missing_rows, 1U);
}

TEST_F(RowsPlans, an_error_that_was_not_told_comes_with_the_next_round) {
  RowsPlan plan = make_plan({&tables_[0]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
  graph.asked(0)[0] = -5;
  ASSERT_TRUE(graph.put(plan).ok());
  graph.wait();
  EXPECT_EQ(graph.put(plan).error().code, Code::out_of_range);
  graph.wait();
  std::mt19937_64 random(8);
  graph.ask(random);
  EXPECT_TRUE(graph.put(plan).ok());
  graph.wait();
  EXPECT_TRUE(graph.holds_what_was_asked());
}

TEST_F(RowsPlans, a_table_that_was_cut_is_told_and_the_graph_goes_on) {
  PlanTable cut = make_table("cut", 4096, 300, {});
  RowsPlan plan = make_plan({&cut});
  PlanGraph graph(*context_, own_stream(), {&cut}, 8);
  ASSERT_TRUE(graph.capture(plan).ok());
  std::mt19937_64 random(9);
  graph.ask(random);
  graph.replay();
  ASSERT_TRUE(graph.holds_what_was_asked());
  ASSERT_EQ(::truncate(folder_.path("cut").c_str(), 8192), 0);
  for (int i = 0; i < 3; ++i) {
    graph.ask(random);
    graph.asked(0)[0] = 299;
    graph.replay();
    EXPECT_EQ(graph.status(0), Code::truncated);
    EXPECT_TRUE(graph.holds_zeros(0));
  }
  EXPECT_EQ(plan.check().error().code, Code::truncated);
}

TEST_F(RowsPlans, a_graph_goes_on_after_its_plan_is_closed) {
  let_frees_wait();
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
  std::mt19937_64 random(10);
  {
    RowsPlan plan = make_plan({&tables_[0]});
    ASSERT_TRUE(graph.capture(plan).ok());
    graph.ask(random);
    graph.replay();
    ASSERT_TRUE(graph.holds_what_was_asked());
  }
  for (int i = 0; i < 3; ++i) {
    graph.replay();
    EXPECT_EQ(graph.status(0), Code::closed);
    EXPECT_TRUE(graph.holds_zeros(0));
  }
}

TEST_F(RowsPlans, closing_waits_for_no_graph_that_is_replayed_all_the_time) {
  let_frees_wait();
  std::atomic<bool> stop{false};
  std::atomic<int> captured{0};
  auto plan = std::make_unique<RowsPlan>(make_plan({&tables_[1]}));
  std::vector<std::jthread> threads;
  for (std::uint64_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i, kept = own_stream()] {
      const OwnContext current(gpu());
      PlanGraph graph(*context_, kept, {&tables_[1]}, 16);
      EXPECT_TRUE(graph.capture(*plan, cuda::cu_capture_mode_thread_local).ok());
      ++captured;
      std::mt19937_64 random(i);
      graph.ask(random);
      while (!stop) {
        graph.replay();
        if (graph.status(0) == Code::ok) {
          EXPECT_TRUE(graph.holds_what_was_asked());
        } else {
          EXPECT_EQ(graph.status(0), Code::closed);
        }
      }
    });
  }
  EXPECT_TRUE(eventually([&] { return captured == 2 && plan->report().rounds > 50; }));
  plan.reset();
  stop = true;
}

TEST_F(RowsPlans, memory_goes_back_when_the_graph_is_destroyed) {
  if (gpu().api().user_object_create == nullptr) GTEST_SKIP() << "the driver can't tell";
  const auto& responder = cuda::Responder::of_process();
  const std::size_t before = responder.size();  // of other tests
  {
    RowsPlan plan = make_plan({&tables_[0]});
    PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
    std::mt19937_64 random(11);
    // The driver takes its time to say that a graph is gone.
    const auto captured_without_more = [&] {
      const std::size_t had = responder.size();
      EXPECT_TRUE(graph.capture(plan).ok());
      graph.ask(random);
      graph.replay();
      EXPECT_TRUE(graph.holds_what_was_asked());
      graph.destroy();
      return responder.size() == had;
    };
    int without_more = 0;
    EXPECT_TRUE(eventually([&] { return (without_more += captured_without_more()) >= 5; }))
        << "what one graph had, a later one has";
    ASSERT_TRUE(graph.capture(plan).ok());
    plan = RowsPlan();
    EXPECT_GE(responder.size(), 1U) << "the graph may still ask";
  }
  EXPECT_TRUE(eventually([&] { return responder.size() <= before; }));
}

TEST_F(RowsPlans, what_makes_no_sense_is_refused) {
  const Rows none;
  EXPECT_EQ(RowsPlan::make(Domain::cuda(0), {&none, 1}, 5).error().code, Code::invalid_argument);
  EXPECT_EQ(RowsPlan::make(Domain::cuda(0), {}, 5).error().code, Code::invalid_argument);
  EXPECT_EQ(RowsPlan::make(Domain::host(), {&tables_[0].opened, 1}, 5).error().code, Code::invalid_argument);
  EXPECT_EQ(RowsPlan::make(Domain::cuda(0), {&tables_[0].opened, 1}, 0).error().code, Code::invalid_argument);
  EXPECT_EQ(RowsPlan::make(Domain::cuda(99), {&tables_[0].opened, 1}, 5).error().code, Code::no_device);
  RowsPlan plan = make_plan({&tables_[0]});
  const cuda::CuStream stream = own_stream();
  const PlanGraph graph(*context_, stream, {&tables_[0]}, 8);
  const auto refusal = [&](auto change) {
    PlannedGather gather = graph.gathers()[0];
    change(gather);
    return plan.enqueue({stream}, gather).error().code;
  };
  EXPECT_EQ(refusal([](PlannedGather& each) { each.table = 1; }), Code::invalid_argument);
  EXPECT_EQ(refusal([](PlannedGather& each) { each.memory.size_bytes -= 1; }), Code::invalid_argument);
  EXPECT_EQ(refusal([](PlannedGather& each) { each.memory.domain = Domain::host(); }), Code::invalid_argument);
  EXPECT_EQ(refusal([](PlannedGather& each) { each.status.size_bytes = 3; }), Code::invalid_argument);
  EXPECT_EQ(refusal([](PlannedGather& each) { each.numbers = RowNumbers(std::vector<int>{1}); }),
            Code::invalid_argument);
  EXPECT_EQ(plan.enqueue({stream}, std::span<const PlannedGather>()).error().code, Code::invalid_argument);
  const Buffer numbers = context_->allocate(Domain::cuda(0), 8 * (2 * most_rows + 1)).value();
  const Buffer memory = context_->allocate(Domain::cuda(0), 1024 * (2 * most_rows + 1)).value();
  EXPECT_EQ(plan.enqueue({stream}, {.numbers = {RowNumbers::Type::i64, numbers.region()}, .memory = memory.region()})
                .error()
                .code,
            Code::out_of_range);
  RowsPlan moved = std::move(plan);
  EXPECT_EQ(plan.check().error().code, Code::invalid_argument);
  EXPECT_EQ(plan.enqueue({stream}, graph.gathers()).error().code, Code::invalid_argument);
  EXPECT_EQ(plan.report().rounds, 0U);
  EXPECT_TRUE(moved.check().ok());
}

TEST_F(RowsPlans, a_stream_that_the_driver_refuses_is_an_error) {
  PENSTOCK_NEEDS_FAKE();
  RowsPlan plan = make_plan({&tables_[0]});
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
  std::mt19937_64 random(12);
  for (const char* function : {"cuStreamIsCapturing", "cuLaunchKernel", "cuStreamWriteValue32_v2"}) {
    if (gpu().kernels().find("scatter") == nullptr && std::string_view(function) == "cuLaunchKernel") continue;
    fake_->fail_call(function, 1, cuda::cu_invalid_value, 0);
    const cuda::CuStream stream = own_stream();
    EXPECT_FALSE(plan.enqueue({stream}, graph.gathers()).ok()) << function;
    EXPECT_EQ(wait_for(stream), cuda::cu_success) << "for the part of the round that it has";
  }
  graph.ask(random);
  ASSERT_TRUE(graph.capture(plan).ok());
  graph.replay();
  EXPECT_TRUE(graph.holds_what_was_asked());
}

TEST_F(RowsPlans, that_a_process_was_forked_with_belong_to_its_parent) {
  std::optional<RowsPlan> plan(make_plan({&tables_[0]}));
  PlanGraph graph(*context_, own_stream(), {&tables_[0]}, 8);
  ASSERT_TRUE(graph.capture(*plan).ok());
  std::mt19937_64 random(13);
  graph.ask(random);
  graph.launch();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(20);  // a child that hangs is told by its signal
    const Status put = plan->enqueue({}, graph.gathers());
    const Status told = plan->check();
    const bool are_refused = !put.ok() && put.error().code == Code::closed && !told.ok() &&
                             put.error().message.find("parent") != std::string::npos;
    plan.reset();
    ::_exit(are_refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  graph.wait();
  EXPECT_TRUE(graph.holds_what_was_asked());
  graph.replay();
  EXPECT_TRUE(graph.holds_what_was_asked()) << "the parent goes on";
}

// Run over a driver that has none of it, too (CMakeLists.txt).
TEST_F(GpuTest, plans_are_refused_by_name_where_the_driver_has_no_waits) {
  if (gpu().api().stream_wait_value != nullptr) GTEST_SKIP() << "it has";
  const auto refused = Rendezvous::make(Domain::cuda(0), [](const Crew&) {});
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_NE(refused.error().message.find("cuStreamWaitValue32"), std::string::npos);
}

}  // namespace
}  // namespace penstock::test
