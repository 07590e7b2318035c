// CompletionQueue: submissions, completions, the descriptor, bounds, cancellation and lifetime.
#include "penstock/completion_queue.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "api/context_builder.h"
#include "integration/context_fixture.h"
#include "support/gated_engine.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t block = 4096;
constexpr std::size_t blocks = 64;

bool is_readable(int fd, int timeout_ms = 0) {
  pollfd polled{fd, POLLIN, 0};
  return ::poll(&polled, 1, timeout_ms) == 1;
}

class CompletionQueueTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    write_file(folder_.path("file"), content(1, 0, block * blocks));
  }
  Context gated(const std::shared_ptr<Gate>& gate) const {
    engine::Table table;
    table.push_back(std::make_unique<GatedEngine>(std::vector{gate}));
    return ContextBuilder::build(std::move(table), options_).value();
  }
  Range range_of(const Store& store, std::size_t index) {
    return {&store, index * block, Region::host(memory_.data() + index * block, block)};
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(block * blocks);
  std::array<Completion, blocks> done_{};
};

TEST_F(CompletionQueueTest, completes_each_submission_once) {
  for (const Cache cache : {Cache::automatic, Cache::bypass}) {
    const Context context = make_context();
    const Store store = context.open(folder_.path("file")).value();
    const auto queue = CompletionQueue::create(context, {.capacity = blocks}).value();
    const RequestOptions options{.cache = cache};
    std::fill(memory_.begin(), memory_.end(), std::byte{0});
    for (std::size_t i = 0; i < blocks; ++i) {
      const Range range = range_of(store, i);
      ASSERT_TRUE(queue.submit({.ranges = {&range, 1}, .user_data = i + 100, .options = &options}).ok());
    }
    std::set<std::uint64_t> seen;
    while (seen.size() < blocks) {
      const std::size_t count = queue.wait(done_, 1, 10s);
      ASSERT_NE(count, 0U);
      for (const Completion& each : std::span(done_).first(count)) {
        EXPECT_EQ(each.code, Code::ok);
        EXPECT_EQ(each.bytes, block);
        EXPECT_TRUE(seen.insert(each.user_data).second);
      }
    }
    EXPECT_EQ(*seen.begin(), 100U);
    EXPECT_EQ(*seen.rbegin(), 100 + blocks - 1);
    EXPECT_EQ(queue.size(), 0U);
    EXPECT_EQ(queue.wait(done_, 1, 10s), 0U) << "nothing is left to wait for";
    EXPECT_TRUE(holds_content(memory_, 1, 0));
  }
}

TEST_F(CompletionQueueTest, polling_alone_makes_progress) {
  const Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context).value();
  const RequestOptions past_cache{.cache = Cache::bypass};
  for (std::size_t i = 0; i < blocks; ++i) {
    const Range range = range_of(store, i);
    ASSERT_TRUE(queue.submit({.ranges = {&range, 1}, .user_data = i, .options = &past_cache}).ok());
  }
  std::size_t count = 0;
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (count < blocks && std::chrono::steady_clock::now() < until) count += queue.poll(done_);
  EXPECT_EQ(count, blocks);
  EXPECT_TRUE(holds_content(memory_, 1, 0));
}

TEST_F(CompletionQueueTest, a_batch_is_accepted_as_far_as_there_is_capacity) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context, {.capacity = 5}).value();
  gate->close();
  std::vector<Range> ranges;
  std::vector<Submission> submissions;
  for (std::size_t i = 0; i < 8; ++i) ranges.push_back(range_of(store, i));
  for (std::size_t i = 0; i < 8; ++i) submissions.push_back({.ranges = {&ranges[i], 1}, .user_data = i});
  EXPECT_EQ(queue.submit(submissions).value(), 5U);
  EXPECT_EQ(queue.size(), 5U);
  const auto refused = queue.submit(std::span(submissions).subspan(5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::would_block);
  EXPECT_EQ(queue.poll(done_), 0U);
  gate->open();
  ASSERT_EQ(queue.wait(std::span(done_).first(2), 2, 10s), 2U);
  EXPECT_EQ(queue.submit(std::span(submissions).subspan(5)).value(), 2U) << "two were collected";
  std::size_t count = 0;
  for (std::size_t some = 1; some != 0; count += some) some = queue.wait(done_, blocks, 10s);
  EXPECT_EQ(count, 5U);
}

TEST_F(CompletionQueueTest, a_refused_submission_has_no_completion_and_takes_no_place) {
  const Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context, {.capacity = 1}).value();
  for (int i = 0; i < 3; ++i) {
    const Range past_the_end{&store, block * blocks, Region::host(memory_.data(), block)};
    const auto refused = queue.submit({.ranges = {&past_the_end, 1}, .user_data = 1});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::out_of_range);
  }
  EXPECT_EQ(queue.size(), 0U);
  const Range range = range_of(store, 0);
  EXPECT_TRUE(queue.submit({.ranges = {&range, 1}}).ok());
  EXPECT_EQ(queue.wait(done_, 1, 10s), 1U);
}

TEST_F(CompletionQueueTest, the_descriptor_is_readable_while_completions_are_there) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context).value();
  const int fd = queue.fd();
  ASSERT_GE(fd, 0);
  EXPECT_EQ(queue.fd(), fd);
  EXPECT_FALSE(is_readable(fd));
  gate->close();
  const Range first = range_of(store, 0);
  const Range second = range_of(store, 1);
  ASSERT_TRUE(queue.submit({.ranges = {&first, 1}, .user_data = 1}).ok());
  ASSERT_TRUE(queue.submit({.ranges = {&second, 1}, .user_data = 2}).ok());
  EXPECT_FALSE(is_readable(fd));
  gate->open();
  EXPECT_TRUE(is_readable(fd, 10000)) << "without a thread in poll or wait";
  std::size_t count = 0;
  while (count < 2) {
    ASSERT_TRUE(is_readable(fd, 10000));
    count += queue.poll(std::span(done_).first(1));
  }
  EXPECT_FALSE(is_readable(fd));
}

TEST_F(CompletionQueueTest, a_descriptor_that_is_asked_for_late_tells_what_is_there) {
  const Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  ASSERT_TRUE(context.read(store, 0, Region::host(memory_.data(), block)).ok());
  const auto queue = CompletionQueue::create(context).value();
  const Range range = range_of(store, 0);
  ASSERT_TRUE(queue.submit({.ranges = {&range, 1}}).ok());
  EXPECT_TRUE(is_readable(queue.fd(), 10000));
  EXPECT_EQ(queue.poll(done_), 1U);
  EXPECT_FALSE(is_readable(queue.fd()));
}

TEST_F(CompletionQueueTest, tells_the_code_of_a_failure_and_the_ticket_has_the_report) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context).value();
  gate->fail();
  Ticket ticket;
  const Range range = range_of(store, 0);
  ASSERT_TRUE(queue.submit({.ranges = {&range, 1}, .user_data = 9, .ticket = &ticket}).ok());
  ASSERT_EQ(queue.wait(done_, 1, 10s), 1U);
  const Report report = ticket.report();
  EXPECT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(done_[0].user_data, 9U);
  EXPECT_EQ(done_[0].code, report.error->code);
  EXPECT_NE(done_[0].code, Code::ok);
  EXPECT_EQ(done_[0].bytes, report.bytes);
}

TEST_F(CompletionQueueTest, a_cancelled_request_completes_as_cancelled) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context).value();
  gate->close();
  Ticket ticket;
  const Range range = range_of(store, 0);
  ASSERT_TRUE(queue.submit({.ranges = {&range, 1}, .ticket = &ticket}).ok());
  EXPECT_EQ(ticket.cancel(), Outcome::cancelled);
  ASSERT_EQ(queue.wait(done_, 1, 10s), 1U);
  EXPECT_EQ(done_[0].code, Code::cancelled);
  EXPECT_EQ(done_[0].bytes, 0U);
}

TEST_F(CompletionQueueTest, the_end_of_the_last_handle_cancels_what_is_in_flight) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  std::array<Ticket, 3> tickets;
  gate->close();
  {
    const auto queue = CompletionQueue::create(context).value();
    const CompletionQueue copy = queue;
    for (std::size_t i = 0; i < tickets.size(); ++i) {
      const Range range = range_of(store, i);
      ASSERT_TRUE(copy.submit({.ranges = {&range, 1}, .ticket = &tickets[i]}).ok());
    }
  }
  for (const Ticket& ticket : tickets) EXPECT_EQ(ticket.outcome(), Outcome::cancelled);
}

TEST_F(CompletionQueueTest, what_had_completed_when_it_was_closed_can_be_collected) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context).value();
  gate->close();
  const Range range = range_of(store, 0);
  ASSERT_TRUE(queue.submit({.ranges = {&range, 1}, .user_data = 3}).ok());
  queue.close();
  const auto refused = queue.submit({.ranges = {&range, 1}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::closed);
  ASSERT_EQ(queue.poll(done_), 1U);
  EXPECT_EQ(done_[0].user_data, 3U);
  EXPECT_EQ(done_[0].code, Code::cancelled);
}

TEST_F(CompletionQueueTest, closing_the_context_ends_its_requests) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context).value();
  gate->close();
  const Range range = range_of(store, 0);
  ASSERT_TRUE(queue.submit({.ranges = {&range, 1}}).ok());
  context.close();
  ASSERT_EQ(queue.wait(done_, 1, 10s), 1U);
  EXPECT_EQ(done_[0].code, Code::closed);
  const auto refused = queue.submit({.ranges = {&range, 1}});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::closed);
  EXPECT_EQ(CompletionQueue::create(context).error().code, Code::closed);
}

TEST_F(CompletionQueueTest, keeps_its_context_open) {
  CompletionQueue queue;
  Store store;
  {
    const Context context = make_context();
    store = context.open(folder_.path("file")).value();
    queue = CompletionQueue::create(context).value();
  }
  const Range range = range_of(store, 0);
  ASSERT_TRUE(queue.submit({.ranges = {&range, 1}}).ok());
  ASSERT_EQ(queue.wait(done_, 1, 10s), 1U);
  EXPECT_EQ(done_[0].code, Code::ok);
}

TEST_F(CompletionQueueTest, serves_many_producers_and_consumers) {
  const Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const auto queue = CompletionQueue::create(context, {.capacity = 48}).value();
  constexpr std::uint64_t producers = 3;
  constexpr std::uint64_t of_each = 400;
  std::vector<std::atomic<int>> seen(producers * of_each);
  std::atomic<std::uint64_t> collected{0};
  std::vector<std::jthread> threads;
  for (std::uint64_t producer = 0; producer < producers; ++producer) {
    threads.emplace_back([&, producer] {
      const RequestOptions past_cache{.cache = Cache::bypass};
      for (std::uint64_t i = 0; i < of_each;) {
        const Range range = range_of(store, (producer * of_each + i) % blocks);
        const Submission submission{
            .ranges = {&range, 1}, .user_data = producer * of_each + i, .options = i % 2 == 0 ? &past_cache : nullptr};
        const auto status = queue.submit(submission);
        if (status) ++i;
        if (!status && status.error().code != Code::would_block) return;
      }
    });
  }
  for (int consumer = 0; consumer < 2; ++consumer) {
    threads.emplace_back([&] {
      std::array<Completion, 16> some{};
      const auto until = std::chrono::steady_clock::now() + 60s;
      while (collected < producers * of_each && std::chrono::steady_clock::now() < until) {
        const std::size_t count = queue.wait(some, 1, 10ms);
        for (const Completion& each : std::span(some).first(count)) ++seen[each.user_data];
        collected += count;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(collected, producers * of_each);
  for (const auto& times : seen) EXPECT_EQ(times, 1);
}

TEST_F(CompletionQueueTest, writes_too) {
  const Context context = make_context();
  const Store store = context.open(folder_.path("new"), {.access = Access::create}).value();
  const auto queue = CompletionQueue::create(context).value();
  const auto bytes = content(2, 0, block * blocks);
  memory_ = bytes;
  for (std::size_t i = 0; i < blocks; ++i) {
    const Range range = range_of(store, i);
    ASSERT_TRUE(queue.submit({.direction = Direction::write, .ranges = {&range, 1}}).ok());
  }
  ASSERT_EQ(queue.wait(done_, blocks, 20s), blocks);
  for (const Completion& each : done_) EXPECT_EQ(each.code, Code::ok);
  EXPECT_EQ(read_file(folder_.path("new")), bytes);
}

TEST_F(CompletionQueueTest, in_a_forked_child_there_is_nothing) {
  const auto gate = std::make_shared<Gate>("file");
  const Context context = gated(gate);
  const Store store = context.open(folder_.path("file")).value();
  auto queue = CompletionQueue::create(context).value();
  gate->close();
  const Range range = range_of(store, 0);
  ASSERT_TRUE(queue.submit({.ranges = {&range, 1}}).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto status = queue.submit({.ranges = {&range, 1}});
    const bool is_right = !status && status.error().code == Code::closed && queue.wait(done_, 1, 10s) == 0 &&
                          queue.size() == 0 && queue.fd() == -1;
    queue = CompletionQueue();
    ::_exit(is_right ? 0 : 1);
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  gate->open();
  EXPECT_EQ(queue.wait(done_, 1, 10s), 1U);
}

TEST_F(CompletionQueueTest, that_is_empty_says_so) {
  const CompletionQueue queue;
  EXPECT_EQ(queue.submit(Submission()).error().code, Code::invalid_argument);
  EXPECT_EQ(queue.wait(done_, 1, 1s), 0U);
  EXPECT_EQ(queue.fd(), -1);
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_EQ(queue.capacity(), 0U);
  queue.close();
  const Context context = make_context();
  EXPECT_EQ(CompletionQueue::create(context, {.capacity = 0}).error().code, Code::invalid_argument);
  EXPECT_EQ(CompletionQueue::create(context, {.capacity = (1 << 20) + 1}).error().code, Code::invalid_argument);
  EXPECT_EQ(CompletionQueue::create(context, {.capacity = 1 << 20}).value().capacity(), std::size_t{1} << 20);
  EXPECT_EQ(CompletionQueue::create(Context()).error().code, Code::invalid_argument);
}

}  // namespace
}  // namespace penstock::test
