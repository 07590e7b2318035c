// The queue pair under a scheduler of its own: every schedule of a few threads with a bounded number of preemptions,
// and memory that reorders what is not ordered.
#include "nvme/interleavings_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::nvme::interleavings {
namespace {

// Sanitizers take a hundred times as long to switch between fibers, and have little to find among them.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool is_slow = true;
#else
constexpr bool is_slow = false;
#endif
constexpr int departures = is_slow ? 1 : 2;

TEST(Interleavings, of_two_threads_on_two_slots_lose_and_mix_up_nothing) {
  const auto outcome = explore(2, 2, {{.rounds = 2}, {.rounds = 1}}, {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_batches_on_four_slots_lose_and_mix_up_nothing) {
  const auto outcome = explore(4, 4, {{.batch = 3}, {.batch = 2}}, {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_threads_that_do_not_wait_for_room_lose_and_mix_up_nothing) {
  const auto outcome = explore(4, 4, {{.batch = 3, .tries = true}, {.batch = 2, .tries = true}},
                               {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_a_group_of_lanes_and_a_thread_lose_and_mix_up_nothing) {
  const auto outcome = explore(4, 8, {{.lanes = 2}, {.batch = 1}}, {.departures = departures, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, of_a_group_larger_than_the_queue_lose_and_mix_up_nothing) {
  const auto outcome = explore(2, 2, {{.lanes = 3, .batch = 1}}, {.departures = 1, .schedules = 200'000});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

TEST(Interleavings, drawn_at_random_lose_and_mix_up_nothing) {
  const std::vector<Work> works{{.batch = 2, .rounds = 3}, {.lanes = 2, .rounds = 2}, {.batch = 1, .rounds = 3}};
  for (const std::uint32_t entries : {2U, 4U}) {
    const auto outcome = explore(entries, 4, works, {.schedules = is_slow ? 10 : 500, .random_seed = entries});
    EXPECT_EQ(outcome.failure, "");
  }
}

TEST(Interleavings, with_a_controller_that_completes_what_it_has_not_fetched_lose_and_mix_up_nothing) {
  const std::vector<std::vector<Work>> all_works = {
      {{.rounds = 2}, {.rounds = 1}}, {{.batch = 3}, {.batch = 1}}, {{.lanes = 2}, {.batch = 1}}};
  for (const std::vector<Work>& works : all_works) {
    const auto outcome = explore(4, 8, works, {.departures = departures, .schedules = 200'000}, {}, {.lies = 2});
    EXPECT_EQ(outcome.failure, "");
    EXPECT_TRUE(outcome.complete);
  }
  const auto outcome = explore(4, 16, {{.batch = 2, .rounds = 3}, {.lanes = 3, .rounds = 2}},
                               {.schedules = is_slow ? 10 : 500, .random_seed = 1}, {}, {.lies = 6});
  EXPECT_EQ(outcome.failure, "");
}

TEST(Interleavings, with_heads_that_were_noted_at_the_fetch_lose_and_mix_up_nothing) {
  for (const std::uint32_t lies : {0U, 2U}) {
    const Manners manners{.lies = lies, .old_heads = true};
    for (const std::vector<Work>& works : {std::vector<Work>{{.batch = 3}, {.batch = 2}}, {{.lanes = 3}, {}}}) {
      const auto outcome = explore(4, 8, works, {.departures = departures, .schedules = 200'000}, {}, manners);
      EXPECT_EQ(outcome.failure, "");
      EXPECT_TRUE(outcome.complete);
    }
    const auto outcome = explore(4, 16, {{.batch = 2, .rounds = 3}, {.lanes = 3, .rounds = 2}},
                                 {.schedules = is_slow ? 10 : 500, .random_seed = 1}, {}, manners);
    EXPECT_EQ(outcome.failure, "");
  }
}

// The controller may complete a command before the thread that rang for it does anything else.
TEST(Interleavings, find_that_what_was_rung_is_told_after_the_doorbell) {
  const auto outcome = explore(4, 4, {{}, {}}, {.departures = 1}, {.rung_is_stored_late = true});
  EXPECT_NE(outcome.failure, "");
}

struct Posted {
  std::uint32_t ticket, head;
  bool counts;
};

// Four commands are in flight, of which these completions tell: what a group made of them that it should not have.
std::string judge_with(std::uint32_t lanes, const std::vector<Posted>& posted) {
  Explorer explorer;
  Bench bench(explorer, 8, 16);
  std::array<Token, 4> tokens;
  Group group;
  group.size = lanes;
  const auto submit_and_post = [&] {
    Group alone;
    SchedulePlatform platform(explorer, alone, 0, {});
    std::vector<Submission> submissions;
    for (Token& token : tokens) submissions.push_back({{}, &token});
    Queue(bench.state, platform).submit(submissions.data(), 4, never);
    for (std::uint32_t i = 0; i < posted.size(); ++i) {
      bench.post(static_cast<std::uint16_t>(posted[i].ticket), i + 1, posted[i].head);
    }
  };
  const auto begin = [&] {
    std::vector<std::function<void()>> bodies;
    for (std::uint32_t rank = 0; rank < lanes; ++rank) {
      bodies.emplace_back([&, rank] {
        if (rank == 0) submit_and_post();
        SchedulePlatform platform(explorer, group, rank, {});
        platform.sync();
        while (Queue(bench.state, platform).drain() > 0) continue;
      });
    }
    return bodies;
  };
  const auto end = [&] {
    std::array<std::uint32_t, 4> results{};
    std::uint32_t strange = 0, fetched = 0;
    for (std::uint32_t i = 0; i < posted.size(); ++i) {
      strange += posted[i].counts ? 0 : 1;
      if (!posted[i].counts) continue;
      results[posted[i].ticket] = i + 1;
      fetched = std::max(fetched, posted[i].head);
    }
    if (bench.state.strange_completions != strange) explorer.note("strange completions were counted otherwise");
    if (bench.state.fetched != fetched) explorer.note("another head is believed");
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const bool done = (tokens[i].state & Token::done_bit) != 0;
      if (done != (results[i] != 0) || tokens[i].result != results[i]) explorer.note("another outcome");
    }
  };
  return explorer.explore({.departures = 0, .schedules = 1}, begin, end).failure;
}

// Lanes take completions at once, and judge them as one thread would that takes one after the other.
TEST(Interleavings, of_a_group_judge_completions_in_the_order_of_the_queue) {
  const std::vector<std::vector<Posted>> queues = {
      {{0, 1, true}, {1, 2, true}, {2, 3, true}, {3, 4, true}},    // as they were fetched
      {{3, 4, true}, {0, 4, true}, {2, 4, true}, {1, 4, true}},    // out of order
      {{0, 1, true}, {2, 1, false}, {1, 3, true}, {2, 3, true}},   // one that was not fetched
      {{0, 3, true}, {1, 2, true}, {2, 1, true}, {3, 3, false}},   // heads that go back, of what was fetched or not
      {{3, 4, true}, {1, 2, true}, {0, 1, true}, {2, 3, true}},    // each noted when its command was fetched
      {{0, 5, false}, {0, 1, true}, {1, 1, false}, {1, 2, true}},  // a head past what was rung
      {{0, 1, true}, {0, 4, false}, {1, 2, true}, {2, 3, true}},   // one that comes twice, with a head ahead of time
      {{0, 0, false}, {0, 1, true}, {0, 4, false}, {1, 2, true}},  // and one that comes thrice
      {{7, 4, false}, {0, 1, true}, {3, 2, false}, {1, 2, true}},  // of no command, with a head ahead of time
      {{0, 2, true}, {2, 1, false}, {2, 1, false}, {2, 3, true}},  // twice back, then as it should be
      {{0, 2, true}, {3, 3, false}, {1, 2, true}, {3, 4, true}}};
  for (const std::vector<Posted>& queue : queues) {
    for (const std::uint32_t lanes : {1U, 2U, 3U, 4U}) EXPECT_EQ(judge_with(lanes, queue), "") << lanes << " lanes";
  }
}

TEST(Interleavings, find_a_missing_order_before_the_doorbell) {
  const auto outcome = explore(2, 2, {{}, {}}, {.departures = 2}, {.no_order_before_ring = true});
  EXPECT_EQ(outcome.failure, "an entry was fetched before it was written");
}

TEST(Interleavings, find_a_missing_order_between_doorbells) {
  if (is_slow) GTEST_SKIP() << "it takes two departures to find, which is too many under a sanitizer";
  const auto outcome = explore(4, 4, {{}, {}}, {.departures = 2}, {.no_order_between_doorbells = true});
  EXPECT_NE(outcome.failure, "");
}

// One thread poisons the queue while others use it: all leave, none rings after it has seen that, and what the
// controller was never told of is the callers' again.
TEST(Interleavings, with_poison_let_everyone_leave) {
  Explorer explorer;
  std::unique_ptr<Bench> bench;
  std::array<Token, 2> tokens;
  std::array<Group, 3> groups;
  std::array<std::uint32_t, 2> published{};
  const auto begin = [&] {
    bench = std::make_unique<Bench>(explorer, 2, 2);
    groups = {};
    published = {};
    bench->users = 2;
    std::vector<std::function<void()>> bodies;
    for (std::uint32_t i = 0; i < 2; ++i) {
      bodies.emplace_back([&, i] {
        SchedulePlatform platform(explorer, groups[i], 0, {});
        Queue queue(bench->state, platform);
        Submission submission{};
        submission.token = &tokens[i];
        published[i] = queue.submit(&submission, 1, never);
        if (published[i] == 1 && queue.wait(tokens[i], never) == Waited::timed_out) explorer.fail("no deadline passed");
        --bench->users;
      });
    }
    bodies.emplace_back([&] {
      SchedulePlatform platform(explorer, groups[2], 0, {});
      Queue(bench->state, platform).poison(Poison::timed_out);
    });
    bodies.emplace_back([&] { bench->serve(2); });
    return bodies;
  };
  const auto end = [&] {
    if (bench->fetches > published[0] + published[1]) explorer.note("a command was rung that its caller has back");
    Group group;
    SchedulePlatform platform(explorer, group, 0, {});
    const std::uint32_t ended = Queue(bench->state, platform).end_in_flight(status::queue_deleted);
    for (const Token& token : tokens) {
      if ((token.state & Token::done_bit) == 0) explorer.note("a token that never ends");
    }
    if (bench->completed + ended < published[0] + published[1]) explorer.note("a command was lost");
  };
  const auto outcome = explorer.explore({.departures = departures, .schedules = 200'000}, begin, end);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete);
}

}  // namespace
}  // namespace penstock::nvme::interleavings
