// Where the system starts no more threads: requests are served by those that there are, or fail by name; nothing ends
// the process, and all is well again when there are threads.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

constexpr std::size_t read_bytes = 2 << 20;
constexpr std::size_t small_bytes = 4096;
constexpr std::size_t bytes_of_one_lane = 512 << 10;

class NoThreads : public testing::Test {
 protected:
  void SetUp() override {
    options_.lanes = 2;
    options_.deadlines.cancel_grace_seconds = 0.05;
    options_.deadlines.close_seconds = 0.2;
    write_file(folder_.path("file"), content(1, 0, read_bytes));
    warm(folder_.path("file"));
  }

  void open(std::unique_ptr<engine::Engine> engine) {
    engine::Table table;
    table.push_back(std::move(engine));
    context_ = ContextBuilder::build(std::move(table), options_).value();
    store_ = context_->open(folder_.path("file")).value();
  }
  std::unique_ptr<engine::Engine> without_end(std::unique_ptr<engine::Engine> engine) {
    return fault::make_engine(std::move(engine), {.never = 1000}, control_);
  }

  Report read(std::size_t bytes) { return context_->read(store_, 0, Region::host(memory_.data(), bytes)); }
  Ticket submit(std::size_t bytes, RequestOptions options = {}) {
    const Range range{&store_, 0, Region::host(memory_.data(), bytes)};
    return context_->submit(Direction::read, {&range, 1}, std::move(options)).value();
  }

  Options options_;
  TemporaryFolder folder_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(read_bytes);  // outlives what is stuck
  std::shared_ptr<fault::FaultControl> control_ = std::make_shared<fault::FaultControl>();
  std::optional<Context> context_;
  Store store_;
};

// Requests that a lane without a thread of its own carries on.
class NoThreadsOverUring : public NoThreads {
 protected:
  void SetUp() override {
    const auto probe = uring::make_engine()->probe();
    if (!probe.available) GTEST_SKIP() << probe.reason;
    NoThreads::SetUp();
  }
};

TEST_F(NoThreads, for_lanes_fail_requests_by_name_until_there_are_some) {
  open(posix::make_engine());
  {
    const NoMoreThreads none;
    const Report failed = read(read_bytes);
    ASSERT_EQ(failed.outcome, Outcome::failed);
    EXPECT_EQ(failed.error->code, Code::out_of_memory);
    EXPECT_NE(failed.error->message.find("no thread"), std::string::npos) << failed.error->message;
    EXPECT_NE(failed.error->hint.find("ulimit"), std::string::npos) << failed.error->hint;
    EXPECT_EQ(submit(read_bytes).wait(), Outcome::failed);
  }
  EXPECT_TRUE(read(read_bytes).ok());
  EXPECT_TRUE(holds_content(memory_, 1, 0));
}

TEST_F(NoThreads, for_more_lanes_leave_the_work_to_those_that_run) {
  open(posix::make_engine());
  ASSERT_EQ(submit(bytes_of_one_lane).wait(), Outcome::done);
  const NoMoreThreads none;
  EXPECT_TRUE(read(read_bytes).ok());
  EXPECT_TRUE(holds_content(memory_, 1, 0));
}

TEST_F(NoThreads, for_callbacks_let_lanes_run_them) {
  open(posix::make_engine());
  ASSERT_TRUE(read(read_bytes).ok());
  std::atomic<int> called{0};
  const auto on_end = [&](const Report& report) { called += report.ok() ? 1 : 0; };
  {
    const NoMoreThreads none;
    submit(read_bytes, {.on_end = on_end});
    EXPECT_TRUE(eventually([&] { return called == 1; }));
  }
  submit(read_bytes, {.on_end = on_end});
  EXPECT_TRUE(eventually([&] { return called == 2; }));
}

TEST_F(NoThreads, for_a_successor_leave_a_stuck_lane_its_slot) {
  options_.lanes = 1;
  open(without_end(posix::make_engine()));
  Ticket ticket = submit(small_bytes);
  ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  {
    const NoMoreThreads none;
    EXPECT_EQ(ticket.cancel(), Outcome::abandoned);
    EXPECT_EQ(context_->statistics().lanes_replaced, 0U);
  }
  Ticket next = submit(small_bytes);
  ASSERT_TRUE(eventually([&] { return control_->stuck() == 2; })) << "the lane takes more";
  control_->release_stuck();
  EXPECT_EQ(next.wait(), Outcome::done);
}

TEST_F(NoThreadsOverUring, to_wait_for_what_is_stuck_let_a_context_close) {
  open(without_end(uring::make_engine()));
  Ticket stuck = submit(small_bytes);
  ASSERT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  ASSERT_EQ(stuck.cancel(), Outcome::abandoned);
  store_ = Store();
  {
    const NoMoreThreads none;
    context_.reset();
  }
  control_->release_stuck();
}

TEST_F(NoThreadsOverUring, to_look_after_small_tickets_do_not_keep_later_ones_from_being_looked_after) {
  options_.lanes = 1;
  open(without_end(uring::make_engine()));
  {
    const NoMoreThreads none;
    EXPECT_EQ(submit(small_bytes).wait(), Outcome::failed);
  }
  const Ticket ticket = submit(small_bytes, {.deadline_seconds = 0.1});
  EXPECT_TRUE(eventually([&] { return ticket.ended(); })) << "though nobody waits";
  control_->release_stuck();
}

}  // namespace
}  // namespace penstock::test
