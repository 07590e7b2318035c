#include "penstock/queue_pair.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "nvme/cpu_platform.h"

namespace penstock::nvme {
namespace {

constexpr std::uint64_t no_deadline = UINT64_MAX;

// A queue pair in plain memory, and a controller that answers when it is told to.
class QueuePairTest : public testing::Test {
 protected:
  void make(std::uint32_t entries, std::uint32_t completion_entries) {
    submissions_.assign(entries, {});
    completions_.assign(completion_entries, {});
    slots_.assign(entries, {});
    state_.memory = {.id = 3,
                     .entries = entries,
                     .completion_entries = completion_entries,
                     .submissions = submissions_.data(),
                     .completions = completions_.data(),
                     .slots = slots_.data(),
                     .tail_doorbell = &doorbells_[0],
                     .head_doorbell = &doorbells_[1]};
    pair().initialize();
  }
  QueuePair<CpuPlatform> pair() { return {state_, platform_}; }

  // Answers `count` commands more, with the number that they carry; says how many there were.
  std::uint32_t answer(std::uint32_t count) {
    std::uint32_t answered = 0;
    while (answered < count && fetched_ % submissions_.size() != CpuPlatform::load_acquire(doorbells_[0])) {
      const Command command = submissions_[fetched_++ % submissions_.size()];
      post(command.cid, status::success, command.dw10);
      ++answered;
    }
    return answered;
  }
  void post(std::uint16_t cid, StatusField field, std::uint32_t result, std::uint32_t queue = 3) {
    post_with_head(static_cast<std::uint32_t>(fetched_ % submissions_.size()), cid, field, result, queue);
  }
  void post_with_head(std::uint32_t head, std::uint32_t cid, StatusField field = status::success,
                      std::uint32_t result = 0, std::uint32_t queue = 3) {
    Completion& entry = completions_[posted_ % completions_.size()];
    entry.result = result;
    entry.submission = queue << 16 | head;
    const bool phase = (posted_ / completions_.size() & 1) == 0;
    __atomic_store_n(&entry.status, Completion::pack(static_cast<std::uint16_t>(cid), phase, field), __ATOMIC_RELEASE);
    ++posted_;
  }
  // Posts one that must be ignored.
  void expect_strange(std::uint32_t head, std::uint32_t cid, const char* why) {
    const std::uint32_t before = state_.strange_completions;
    post_with_head(head, cid);
    EXPECT_EQ(pair().drain(), 1U);
    EXPECT_EQ(state_.strange_completions, before + 1) << why;
  }
  // Posts one that must end the command of this token.
  void expect_done(std::uint32_t head, std::uint32_t cid, const Token& token) {
    const std::uint32_t before = state_.strange_completions;
    EXPECT_FALSE(pair().is_done(token));
    post_with_head(head, cid);
    EXPECT_EQ(pair().drain(), 1U);
    EXPECT_TRUE(pair().is_done(token)) << "head " << head << ", command " << cid;
    EXPECT_EQ(state_.strange_completions, before);
  }
  // Submits so many commands, the first of them as number 0; for the tokens, whose commands' identifiers follow `cid`.
  std::uint16_t submit(std::span<Token> tokens) {
    const auto slot = static_cast<std::size_t>(state_.tickets % submissions_.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Submission one = numbered(tokens[i], static_cast<std::uint32_t>(i));
      EXPECT_EQ(pair().submit(&one, 1, no_deadline), 1U);
    }
    return submissions_[slot].cid;
  }
  static Submission numbered(Token& token, std::uint32_t number) {
    Submission submission{};
    submission.command.dw10 = number;
    submission.token = &token;
    return submission;
  }

  std::uint32_t doorbells_[2] = {};
  Registers registers_{reinterpret_cast<std::byte*>(doorbells_), sizeof doorbells_};
  CpuPlatform platform_{registers_};
  QueuePairState state_;
  std::vector<Command> submissions_;
  std::vector<Completion> completions_;
  std::vector<Slot> slots_;
  std::uint64_t fetched_ = 0;
  std::uint64_t posted_ = 0;
};

TEST_F(QueuePairTest, phase_flips_when_the_ring_wraps) {
  make(4, 4);
  for (std::uint32_t i = 0; i < 50; ++i) {
    Token token;
    const Submission submission = numbered(token, i);
    ASSERT_EQ(pair().submit(&submission, 1, no_deadline), 1U);
    EXPECT_EQ(pair().drain(), 0U) << "what is left of the pass before is not new";
    ASSERT_EQ(answer(1), 1U);
    ASSERT_EQ(pair().wait(token, no_deadline), Waited::done);
    ASSERT_EQ(token.result, i);
  }
  EXPECT_EQ(state_.strange_completions, 0U);
}

TEST_F(QueuePairTest, holds_one_less_than_it_has_slots) {
  make(4, 8);
  Token tokens[5];
  std::vector<Submission> submissions;
  for (std::uint32_t i = 0; i < 5; ++i) submissions.push_back(numbered(tokens[i], i));
  EXPECT_EQ(pair().try_submit(submissions.data(), 5), 3U);
  EXPECT_EQ(state_.doorbells, 1U) << "one for all";
  EXPECT_EQ(pair().try_submit(submissions.data() + 3, 2), 0U);
  answer(1);
  pair().drain();
  EXPECT_EQ(pair().try_submit(submissions.data() + 3, 2), 1U);
}

TEST_F(QueuePairTest, ignores_completions_that_fit_no_command) {
  make(4, 16);
  Token token;
  const Submission submission = numbered(token, 1);
  pair().submit(&submission, 1, no_deadline);
  const std::uint16_t cid = submissions_[0].cid;
  fetched_ = 1;
  post(static_cast<std::uint16_t>(cid + 1), status::success, 0);  // a slot without a command
  post(static_cast<std::uint16_t>(cid + 4), status::success, 0);  // the slot's next generation
  post(0xffff, status::success, 0);                               // no command at all
  post(cid, status::success, 0, 4);                               // of another queue
  pair().drain();
  EXPECT_FALSE(pair().is_done(token));
  EXPECT_EQ(state_.strange_completions, 4U);
  post(cid, status::unrecovered_read, 0);
  post(cid, status::success, 0);  // again
  pair().drain();
  ASSERT_TRUE(pair().is_done(token));
  EXPECT_EQ(pair().status_of(token), status::unrecovered_read);
  EXPECT_EQ(state_.strange_completions, 5U);
}

TEST_F(QueuePairTest, ignores_a_completion_of_a_command_that_was_not_fetched) {
  make(4, 16);
  std::array<Token, 3> tokens;
  const std::uint16_t first = submit(tokens);
  expect_strange(0, first, "none was fetched");
  expect_strange(1, first + 1, "one was fetched, and it is another");
  expect_done(1, first, tokens[0]);
  expect_strange(2, first + 2, "two were fetched");
  expect_done(3, first + 2, tokens[2]);
  expect_done(3, first + 1, tokens[1]);
}

TEST_F(QueuePairTest, takes_a_completion_whose_head_goes_back_if_its_command_is_known_to_be_fetched) {
  make(8, 16);
  std::array<Token, 6> tokens;
  const std::uint16_t first = submit(tokens);
  expect_done(3, first, tokens[0]);
  expect_done(2, first + 1, tokens[1]);
  expect_strange(2, first + 4, "three were fetched, whatever the last one said");
  expect_done(0, first + 2, tokens[2]);
  expect_done(5, first + 4, tokens[4]);
  expect_done(7, first + 3, tokens[3]);
  expect_strange(5, first + 5, "what the one before said could not be, and is not believed");
  expect_done(6, first + 5, tokens[5]);
}

// A head has few bits. One that was noted when its command was fetched, long ago, is not taken for one ahead of all.
TEST_F(QueuePairTest, takes_an_old_head_for_what_it_was) {
  make(4, 8);
  std::array<Token, 1> held;
  const std::uint16_t late = submit(held);
  std::array<Token, 2> tokens;
  const std::uint16_t first = submit(tokens);
  expect_done(2, first, tokens[0]);
  expect_done(3, first + 1, tokens[1]);
  EXPECT_EQ(state_.fetched, 3U);
  expect_done(1, late, held[0]);
  if (HasFailure()) return;  // there would be no room for more
  EXPECT_EQ(state_.fetched, 3U);
  std::array<Token, 3> more;
  const std::uint16_t next = submit(more);
  expect_strange(3, next, "none of these was fetched");
  expect_strange(3, next + 2, "");
  for (std::uint32_t i : {2U, 1U, 0U}) expect_done((next + i + 1) % 4, next + i, more[i]);
}

TEST_F(QueuePairTest, ignores_a_completion_whose_head_is_past_what_was_rung) {
  make(8, 16);
  std::array<Token, 2> tokens;
  const std::uint16_t first = submit(tokens);
  expect_strange(3, first, "two were rung");
  expect_strange(7, first, "");
  expect_strange(8, first, "out of range");
  expect_strange(0xffff, first, "out of range");
  expect_done(1, first, tokens[0]);
  expect_strange(1, first + 1, "heads of strange completions count for nothing");
  expect_done(2, first + 1, tokens[1]);
}

TEST_F(QueuePairTest, believes_no_head_of_a_strange_completion) {
  make(8, 16);
  std::array<Token, 4> tokens;
  const std::uint16_t first = submit(tokens);
  expect_strange(4, first + 4, "no such command, with a head that could be");
  expect_strange(1, first + 3, "so the last one is not fetched yet");
  expect_done(1, first, tokens[0]);
  expect_strange(4, first, "again");
  expect_strange(2, first + 3, "");
  expect_done(4, first + 3, tokens[3]);
}

// As full as it can be, at every place of the ring, and long enough for identifiers and heads to begin anew.
TEST_F(QueuePairTest, follows_heads_around_the_ring_with_all_slots_but_one_in_flight) {
  make(4, 8);
  std::array<Token, 3> tokens;
  for (std::uint32_t round = 0; round < 25'000; ++round) {
    const std::uint16_t first = submit(tokens);
    const auto cid = [first](std::uint32_t i) { return (first + i) & 0x7fff; };
    const std::uint32_t head = 3 * (round + 1) % 4;
    if (round % 1000 < 4) {
      expect_strange((head + 3) % 4, cid(2), "two were fetched");
      expect_strange((head + 1) % 4, cid(0), "this is where it was before: none was fetched");
    }
    for (const std::uint32_t i : {2U, 0U, 1U}) expect_done(head, cid(i), tokens[i]);
    if (HasFailure()) return;
  }
  EXPECT_GT(state_.tickets, 1U << 16);
}

TEST_F(QueuePairTest, ignores_completions_that_are_left_from_before_it_was_made_anew) {
  make(4, 16);
  std::array<Token, 2> before;
  const std::uint16_t old = submit(before);
  pair().poison(Poison::reset);
  EXPECT_EQ(pair().end_in_flight(status::queue_deleted), 2U);
  completions_.assign(completions_.size(), {});
  posted_ = 0;
  pair().initialize();
  std::array<Token, 2> tokens;
  const std::uint16_t first = submit(tokens);
  EXPECT_EQ(doorbells_[0], 2U) << "from the first slot on";
  expect_strange(2, old, "a command that ended with the queue");
  expect_strange(2, old + 1, "");
  expect_done(2, first + 1, tokens[1]);
  expect_done(2, first, tokens[0]);
}

// Posts one more completion of nothing whenever somebody looks for completions, up to a limit.
class FloodedPlatform : public CpuPlatform {
 public:
  FloodedPlatform(const Registers& registers, std::uint32_t most, std::function<void()> post)
      : CpuPlatform(registers), left_(most), post_(std::move(post)) {}
  Completion load_completion(const Completion& completion, bool phase) {
    if (left_ > 0) {
      --left_;
      post_();
    }
    return CpuPlatform::load_completion(completion, phase);
  }
  std::uint32_t left() const { return left_; }

 private:
  std::uint32_t left_;
  std::function<void()> post_;
};

TEST_F(QueuePairTest, ends_waits_by_their_deadlines_though_completions_of_nothing_never_end) {
  make(2, 4);
  FloodedPlatform platform(registers_, 10'000, [this] { post(0xffff, status::success, 0); });
  QueuePair<FloodedPlatform> flooded(state_, platform);
  std::array<Token, 2> tokens;
  const Submission first = numbered(tokens[0], 1);
  ASSERT_EQ(flooded.submit(&first, 1, no_deadline), 1U);
  EXPECT_EQ(flooded.wait(tokens[0], CpuPlatform::now()), Waited::timed_out);
  EXPECT_GT(platform.left(), 9'000U) << "it waited until the flood was over";
  const Submission second = numbered(tokens[1], 2);
  EXPECT_EQ(flooded.submit(&second, 1, CpuPlatform::now()), 0U);
  EXPECT_TRUE(flooded.is_poisoned());
  EXPECT_EQ(flooded.wait(tokens[0], no_deadline), Waited::poisoned);
  EXPECT_GT(platform.left(), 9'000U);
}

TEST_F(QueuePairTest, tells_the_controller_late_but_never_too_late) {
  make(4, 16);
  Token token;
  for (std::uint32_t i = 0; i < 100; ++i) {
    const Submission submission = numbered(token, i);
    ASSERT_EQ(pair().submit(&submission, 1, no_deadline), 1U);
    answer(1);
    ASSERT_EQ(pair().wait(token, no_deadline), Waited::done);
    // What is in flight and what the controller does not know of must fit.
    ASSERT_LE(state_.head - state_.head_rung, 12U);
  }
  EXPECT_GT(state_.head_rung, 80U);
}

TEST_F(QueuePairTest, poisons_itself_when_no_room_is_made_in_time) {
  make(2, 2);
  Token tokens[2];
  const Submission first = numbered(tokens[0], 1);
  const Submission second = numbered(tokens[1], 2);
  ASSERT_EQ(pair().submit(&first, 1, no_deadline), 1U);
  EXPECT_EQ(pair().submit(&second, 1, CpuPlatform::now()), 0U);
  EXPECT_TRUE(pair().is_poisoned());
  EXPECT_EQ(doorbells_[0], 1U) << "nobody rings any more";
  EXPECT_EQ(pair().wait(tokens[0], no_deadline), Waited::poisoned);
  EXPECT_EQ(pair().end_in_flight(status::queue_deleted), 1U);
  EXPECT_EQ(pair().status_of(tokens[0]), status::queue_deleted);
}

TEST_F(QueuePairTest, ends_a_wait_by_its_deadline) {
  make(2, 2);
  Token token;
  const Submission submission = numbered(token, 1);
  pair().submit(&submission, 1, no_deadline);
  EXPECT_EQ(pair().wait(token, CpuPlatform::now()), Waited::timed_out);
  answer(1);
  EXPECT_EQ(pair().wait(token, CpuPlatform::now()), Waited::done) << "what is there is taken all the same";
}

TEST_F(QueuePairTest, serves_many_threads_on_few_slots) {
  make(8, 8);
  constexpr std::uint32_t threads = 4;
  constexpr std::uint32_t each = 500;
  std::atomic<std::uint32_t> wrong{0};
  std::atomic<std::uint32_t> left{threads};
  std::vector<std::thread> running;
  for (std::uint32_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < each; ++i) {
        CpuPlatform platform(registers_);
        QueuePair<CpuPlatform> mine(state_, platform);
        Token tokens[2];
        const Submission two[] = {numbered(tokens[0], t * 10'000 + 2 * i), numbered(tokens[1], t * 10'000 + 2 * i + 1)};
        if (mine.submit(two, 2, no_deadline) != 2) ++wrong;
        for (std::uint32_t k = 0; k < 2; ++k) {
          if (mine.wait(tokens[k], no_deadline) != Waited::done || tokens[k].result != two[k].command.dw10) ++wrong;
        }
      }
      --left;
    });
  }
  std::uint32_t answered = 0;
  while (left > 0) {
    const std::uint32_t more = answer(8);
    answered += more;
    if (more == 0) std::this_thread::yield();
  }
  for (auto& thread : running) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(answered, 2 * threads * each);
  EXPECT_EQ(state_.strange_completions, 0U);
}

}  // namespace
}  // namespace penstock::nvme
