#include "core/engine_queues.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>

#include "base/unique_fd.h"

namespace penstock::core {
namespace {

using engine::Done;
using engine::Op;
using namespace std::chrono_literals;

// Takes and gives what a test tells it to. It never sleeps: it keeps what it was told about that.
class ToldQueue : public engine::Queue {
 public:
  std::size_t submit(std::span<const Op> ops) override {
    const std::size_t count = std::min(ops.size(), room);
    room -= count;
    taken.insert(taken.end(), ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(count));
    return count;
  }
  std::size_t poll(std::span<Done> done, TimePoint deadline) override {
    deadlines.push_back(deadline);
    if (deadlines.size() <= empty_polls) return 0;
    std::size_t count = 0;
    for (; count < done.size() && !ended.empty(); ++count) {
      done[count] = ended.front();
      ended.pop_front();
    }
    return count;
  }
  int event() override {
    ++event_asked;
    return told.get();
  }
  void wake() override {}
  void cancel(std::uint64_t cookie) override { cancelled.push_back(cookie); }

  void tell() const {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(told.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  }
  void hear() const {
    std::uint64_t times = 0;
    EXPECT_EQ(::read(told.get(), &times, sizeof times), static_cast<ssize_t>(sizeof times));
  }

  std::size_t room = 64;
  std::vector<Op> taken;
  std::deque<Done> ended;
  std::size_t empty_polls = 0;
  std::vector<TimePoint> deadlines;  // of each poll
  UniqueFd told;
  int event_asked = 0;
  std::vector<std::uint64_t> cancelled;
};

// Makes ToldQueues, or refuses to.
class ToldEngine : public engine::Engine {
 public:
  explicit ToldEngine(bool can_inline = false) : description_{.name = "told", .inline_queue = can_inline} {}
  const engine::Description& description() const override { return description_; }
  engine::Probe probe() const override { return {.available = true}; }
  Result<std::unique_ptr<engine::Store>> open(const std::string&, const OpenOptions&) override {
    return Error{Code::unsupported, 0, "not here", ""};
  }
  Result<std::unique_ptr<engine::Queue>> make_queue(const engine::QueueOptions& options) override {
    asked.push_back(options);
    if (refuses || (refuses_threads && !options.run_inline)) {
      return Error{Code::out_of_memory, 0, "a queue that this test does not want", ""};
    }
    auto made = std::make_unique<ToldQueue>();
    queue = made.get();
    return std::unique_ptr<engine::Queue>(std::move(made));
  }

  bool refuses = false;
  bool refuses_threads = false;
  std::vector<engine::QueueOptions> asked;
  ToldQueue* queue = nullptr;  // the last one

 private:
  const engine::Description description_;
};

class EngineQueuesTest : public testing::Test {
 protected:
  static engine::Table two_engines() {
    engine::Table table;
    for (int i = 0; i < 2; ++i) table.push_back(std::make_unique<ToldEngine>());
    return table;
  }
  ToldEngine& engine(std::size_t index) { return static_cast<ToldEngine&>(*table_[index]); }
  ToldQueue& queue(std::size_t engine) {
    EXPECT_TRUE(queues_.ensure(engine).ok());
    return *this->engine(engine).queue;
  }
  // A piece with an operation of so many bytes that waits to be given to the engine; its cookie.
  std::uint64_t add(std::size_t engine, std::uint64_t length = 100) {
    const std::uint32_t index = pieces_.take();
    pieces_[index].op = {.length = length, .cookie = pieces_.cookie_of(index)};
    queues_.add(engine, pieces_[index].op);
    return pieces_[index].op.cookie;
  }
  // One operation in flight on each of the two engines, with or without an event that tells of its end.
  void keep_both_busy(bool events) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (events) queue(i).told = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      queue(i);
      add(i);
    }
    queues_.submit();
  }
  std::size_t collect(TimePoint until = TimePoint::min()) {
    return queues_.collect(until, [this](std::size_t, const Done& done) { collected_.push_back(done.cookie); });
  }

  const engine::Table table_ = two_engines();
  Pieces pieces_{16};
  Inbox inbox_;
  EngineQueues queues_{table_, {.depth = 16}, pieces_, inbox_, nullptr};
  std::vector<std::uint64_t> collected_;
};

TEST_F(EngineQueuesTest, makes_a_queue_once_and_only_where_it_is_needed) {
  EXPECT_TRUE(queues_.ensure(1).ok());
  EXPECT_TRUE(queues_.ensure(1).ok());
  EXPECT_EQ(engine(0).asked.size(), 0U);
  ASSERT_EQ(engine(1).asked.size(), 1U);
  EXPECT_EQ(engine(1).asked[0].depth, 16U);
}

TEST_F(EngineQueuesTest, tries_again_to_make_a_queue_that_could_not_be_made) {
  engine(0).refuses = true;
  EXPECT_EQ(queues_.ensure(0).error().code, Code::out_of_memory);
  engine(0).refuses = false;
  EXPECT_TRUE(queues_.ensure(0).ok());
}

TEST_F(EngineQueuesTest, falls_back_to_a_queue_that_works_inside_submit) {
  engine::Table table;
  table.push_back(std::make_unique<ToldEngine>(true));
  auto& engine = static_cast<ToldEngine&>(*table[0]);
  engine.refuses_threads = true;
  EngineQueues queues(table, {.depth = 4}, pieces_, inbox_, nullptr);
  EXPECT_TRUE(queues.ensure(0).ok());
  ASSERT_EQ(engine.asked.size(), 2U);
  EXPECT_FALSE(engine.asked[0].run_inline);
  EXPECT_TRUE(engine.asked[1].run_inline);
}

TEST_F(EngineQueuesTest, asks_for_a_queue_that_works_inside_submit_only_where_there_can_be_one) {
  for (const bool can : {false, true}) {
    engine::Table table;
    table.push_back(std::make_unique<ToldEngine>(can));
    auto& engine = static_cast<ToldEngine&>(*table[0]);
    EngineQueues queues(table, {.depth = 4, .run_inline = true}, pieces_, inbox_, nullptr);
    EXPECT_TRUE(queues.ensure(0).ok());
    EXPECT_EQ(engine.asked.at(0).run_inline, can);
    engine.refuses = true;
    EngineQueues others(table, {.depth = 4, .run_inline = true}, pieces_, inbox_, nullptr);
    EXPECT_FALSE(others.ensure(0).ok());
    EXPECT_EQ(engine.asked.size(), 2U) << "there is nothing to fall back to";
  }
}

TEST_F(EngineQueuesTest, keeps_what_an_engine_does_not_take_for_the_next_time_in_order) {
  ToldQueue& queue = this->queue(0);
  queue.room = 2;
  std::vector<std::uint64_t> cookies;
  for (int i = 0; i < 5; ++i) cookies.push_back(add(0));
  const auto where = [&](std::size_t i) { return pieces_[Pieces::index_of(cookies[i])].where; };
  queues_.submit();
  EXPECT_EQ(queues_.in_flight(), 2U);
  EXPECT_EQ(where(1), Piece::Where::queue);
  EXPECT_EQ(where(2), Piece::Where::here);
  queues_.submit();
  EXPECT_EQ(queues_.in_flight(), 2U);
  queue.room = 8;
  queues_.submit();
  queues_.submit();
  EXPECT_EQ(queues_.in_flight(), 5U);
  ASSERT_EQ(queue.taken.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(queue.taken[i].cookie, cookies[i]);
}

TEST_F(EngineQueuesTest, takes_back_what_no_engine_has_seen) {
  ToldQueue& queue = this->queue(0);
  queue.room = 1;
  const std::uint64_t sent = add(0);
  const std::uint64_t meant = add(0);
  const std::uint64_t other = add(0);
  queues_.submit();
  queues_.take_back([&](std::uint64_t cookie) { return cookie != other; });
  queue.room = 8;
  queues_.submit();
  ASSERT_EQ(queue.taken.size(), 2U);
  EXPECT_EQ(queue.taken[0].cookie, sent);
  EXPECT_EQ(queue.taken[1].cookie, other);
  EXPECT_EQ(pieces_[Pieces::index_of(meant)].where, Piece::Where::here);
  EXPECT_EQ(queues_.in_flight(), 2U);
  queues_.cancel(0, sent);
  EXPECT_EQ(queue.cancelled, std::vector{sent});
}

TEST_F(EngineQueuesTest, counts_operations_and_their_bytes_while_they_are_in_flight) {
  queue(0).room = 1;
  queue(1);
  const std::uint64_t first = add(0, 100);
  add(0, 1);
  const std::uint64_t second = add(1, 30);
  EXPECT_EQ(queues_.bytes_in_flight(), 0U);
  queues_.submit();
  EXPECT_EQ(queues_.bytes_in_flight(), 130U) << "what was not taken is not in flight";
  queue(0).ended = {{.cookie = first, .bytes = 7}};
  EXPECT_EQ(collect(), 1U);
  EXPECT_EQ(queues_.bytes_in_flight(), 30U) << "however few bytes it moved";
  EXPECT_EQ(queues_.in_flight(), 1U);
  queue(1).ended = {{.cookie = second, .code = Code::io_error}};
  EXPECT_EQ(collect(), 1U);
  EXPECT_EQ(queues_.bytes_in_flight(), 0U);
  EXPECT_EQ(queues_.in_flight(), 0U);
  EXPECT_EQ(pieces_[Pieces::index_of(second)].where, Piece::Where::here);
  EXPECT_EQ(collected_, (std::vector{first, second}));
}

TEST_F(EngineQueuesTest, ignores_the_end_of_what_is_not_in_flight) {
  ToldQueue& queue = this->queue(0);
  const std::uint64_t twice = add(0);
  const std::uint64_t given_back = add(0);
  queues_.submit();
  const std::uint64_t no_place = 1000;
  queue.ended = {{.cookie = given_back}};
  collect();
  pieces_.give_back(Pieces::index_of(given_back));
  queue.room = 1;
  const std::uint64_t stays = add(0);
  ASSERT_EQ(Pieces::index_of(stays), Pieces::index_of(given_back)) << "another has its place";
  queues_.submit();
  const std::uint64_t unsent = add(0);
  collected_.clear();
  queue.ended = {
      {.cookie = twice}, {.cookie = twice}, {.cookie = given_back}, {.cookie = unsent}, {.cookie = no_place}};
  collect();
  EXPECT_EQ(collected_, std::vector{twice});
  EXPECT_EQ(queues_.in_flight(), 1U);
  EXPECT_EQ(queues_.bytes_in_flight(), 100U);
  EXPECT_EQ(pieces_[Pieces::index_of(unsent)].where, Piece::Where::here);
  EXPECT_EQ(pieces_[Pieces::index_of(stays)].where, Piece::Where::queue);
}

TEST_F(EngineQueuesTest, asks_nobody_where_nothing_is_in_flight) {
  queue(0);
  EXPECT_EQ(collect(TimePoint::max()), 0U);
  EXPECT_TRUE(queue(0).deadlines.empty());
}

TEST_F(EngineQueuesTest, leaves_sleeping_to_the_only_queue_that_is_busy) {
  const TurnedClock clock;
  ToldQueue& busy = queue(1);
  queue(0);
  add(1);
  queues_.submit();
  const TimePoint until = Clock::now() + 1h;
  EXPECT_EQ(collect(until), 0U);
  EXPECT_EQ(busy.deadlines, std::vector{until});
  EXPECT_EQ(busy.event_asked, 0);
  inbox_.attend();
  collect(until);
  EXPECT_EQ(busy.deadlines.back(), TimePoint::min()) << "there is news";
}

TEST_F(EngineQueuesTest, sleeps_once_for_two_queues_that_are_busy) {
  keep_both_busy(true);
  const TimePoint until = Clock::now() + 2ms;
  EXPECT_EQ(collect(until), 0U);
  EXPECT_GE(Clock::now(), until);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(queue(i).deadlines.size(), 2U) << "looked at before and after, and not in between";
    EXPECT_EQ(queue(i).event_asked, 1);
  }
}

TEST_F(EngineQueuesTest, is_woken_by_whichever_of_two_queues_has_something) {
  keep_both_busy(true);
  for (std::size_t told = 0; told < 2; ++told) {
    // It sleeps 50 ms at most: who is never woken takes as long every time.
    Duration shortest = Duration::max();
    for (int round = 0; round < 20; ++round) {
      ToldQueue& queue = this->queue(told);
      queue.deadlines.clear();
      queue.empty_polls = 1;
      const std::uint64_t cookie = queue.taken.back().cookie;
      queue.ended = {{.cookie = cookie}};
      queue.tell();
      const TimePoint begun = Clock::now();
      ASSERT_EQ(collect(begun + 20s), 1U);
      shortest = std::min(shortest, Clock::now() - begun);
      queue.hear();
      EXPECT_EQ(collected_.back(), cookie);
      pieces_.give_back(Pieces::index_of(cookie));
      add(told);
      queues_.submit();
    }
    EXPECT_LT(shortest, 50ms);
  }
}

TEST_F(EngineQueuesTest, does_not_sleep_on_events_while_there_is_news) {
  keep_both_busy(true);
  inbox_.attend();
  Duration shortest = Duration::max();
  for (int round = 0; round < 20; ++round) {
    const TimePoint begun = Clock::now();
    EXPECT_EQ(collect(begun + 20s), 0U);
    shortest = std::min(shortest, Clock::now() - begun);
  }
  EXPECT_LT(shortest, 50ms);
}

TEST_F(EngineQueuesTest, polls_two_queues_by_turns_where_one_has_no_event) {
  keep_both_busy(true);
  queue(1).told = UniqueFd();
  const TurnedClock clock;
  std::array<int, 2> slept_in{};
  for (int round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < 2; ++i) queue(i).deadlines.clear();
    EXPECT_EQ(collect(Clock::now() + 1h), 0U);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto& deadlines = queue(i).deadlines;
      ASSERT_GE(deadlines.size(), 1U);
      EXPECT_EQ(deadlines[0], TimePoint::min()) << "a look, before anyone sleeps";
      if (deadlines.size() == 1) continue;
      ++slept_in[i];
      EXPECT_GT(deadlines[1], Clock::now());
      EXPECT_LE(deadlines[1], Clock::now() + 1ms) << "the other has to be looked at soon";
    }
  }
  EXPECT_EQ(slept_in, (std::array{2, 2}));
}

TEST_F(EngineQueuesTest, sleeps_no_longer_than_it_is_told_to_where_there_is_no_event) {
  keep_both_busy(false);
  const TurnedClock clock;
  const TimePoint until = Clock::now() + 1us;
  EXPECT_EQ(collect(until), 0U);
  for (std::size_t i = 0; i < 2; ++i) {
    for (const TimePoint deadline : queue(i).deadlines) EXPECT_LE(deadline, until);
  }
  EXPECT_EQ(queue(0).deadlines.size() + queue(1).deadlines.size(), 3U);
}

TEST_F(EngineQueuesTest, has_no_queues_once_it_was_cleared) {
  queue(0);
  queues_.clear();
  queue(0);
  EXPECT_EQ(engine(0).asked.size(), 2U);
}

}  // namespace
}  // namespace penstock::core
