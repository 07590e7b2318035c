// A Context on both sides of a fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "api/context_builder.h"
#include "integration/context_fixture.h"
#include "integration/machine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

// Runs `check` in a forked child; true if it returned true there.
template <typename Check>
bool holds_in_child(Check check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

class Fork : public ContextTest, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
    if (const auto probe = table_of(GetParam())[0]->probe(); !probe.available) GTEST_SKIP() << probe.reason;
    context_.emplace(ContextBuilder::build(table_of(GetParam()), options_).value());
    store_ = context_->open(path_).value();
    memory_ = context_->allocate(Domain::host(), size_bytes).value();
    EXPECT_TRUE(context_->read(store_, 0, memory_.region()).ok());  // the lanes have threads and rings now
  }

  const std::string path_ = make_file("file");
  std::optional<Context> context_;
  Store store_;
  Buffer memory_;
};

INSTANTIATE_TEST_SUITE_P(Engines, Fork, testing::Values("posix", "uring"),
                         [](const auto& instance) { return instance.param; });

TEST_P(Fork, gives_the_child_an_error_and_not_service) {
  EXPECT_TRUE(holds_in_child([&] {
    const Range range{&store_, 0, memory_.region()};
    const Report report = context_->read(store_, 0, memory_.region());
    const Report small = context_->read(store_, 0, memory_.region().part(0, 10));
    return report.error && report.error->code == Code::closed && small.error && small.error->code == Code::closed &&
           context_->open(path_).error().code == Code::closed &&
           context_->submit(Direction::read, {&range, 1}).error().code == Code::closed &&
           context_->prefetch({&range, 1}).error().code == Code::closed &&
           context_->allocate(Domain::host(), 10).error().code == Code::closed;
  }));
}

TEST_P(Fork, lets_the_child_make_a_context_of_its_own) {
  EXPECT_TRUE(holds_in_child([&] {
    Context own = ContextBuilder::build(table_of(GetParam()), options_).value();
    const Store store = own.open(path_).value();
    std::vector<std::byte> memory(size_bytes);
    return own.read(store, 0, Region::host(memory.data(), memory.size())).ok() && holds_content(memory, 1, 0);
  }));
}

TEST_P(Fork, leaves_nobody_waiting_in_the_child_for_a_request_of_the_parent) {
  options_.lanes = 1;
  options_.storage_chunk_bytes = 4096;
  options_.operations_in_flight = 1;
  context_.emplace(ContextBuilder::build(table_of(GetParam()), options_).value());
  store_ = context_->open(path_).value();
  const std::vector<Range> ranges(50, Range{&store_, 0, memory_.region()});
  Ticket ticket = context_->submit(Direction::read, ranges).value();
  EXPECT_TRUE(holds_in_child([&] {
    ::alarm(20);
    const Report report = ticket.report();
    return ticket.ended() && ticket.outcome() == Outcome::cancelled && ticket.wait() == Outcome::cancelled &&
           ticket.cancel() == Outcome::cancelled && report.error && report.error->code == Code::closed;
  }));
  EXPECT_EQ(ticket.wait(), Outcome::done);
}

TEST_P(Fork, leaves_the_parent_whole_when_the_child_drops_what_it_inherited) {
  options_.cache = Cache::bypass;
  options_.lanes = 1;  // one ring: the one that the child knows
  context_.emplace(ContextBuilder::build(table_of(GetParam()), options_).value());
  store_ = context_->open(path_).value();
  std::vector<std::byte> attached(size_bytes);
  const Region region = Region::host(attached.data(), attached.size());
  ASSERT_TRUE(context_->attach(region).ok());
  ASSERT_TRUE(context_->read(store_, 0, region).ok());
  Store unfinished = context_->open(folder_.path("new"), {.access = Access::replace}).value();
  ASSERT_TRUE(context_->write(unfinished, 0, region).ok());
  EXPECT_TRUE(holds_in_child([&] {
    memory_ = Buffer();
    store_ = Store();
    unfinished = Store();
    context_.reset();
    return true;
  }));
  std::fill(attached.begin(), attached.end(), std::byte{0});
  const Report report = context_->read(store_, 0, region);
  EXPECT_TRUE(report.ok()) << message_of(report);
  EXPECT_TRUE(holds_content(attached, 1, 0));
  EXPECT_TRUE(unfinished.commit().ok()) << "the child removed the parent's unfinished file";
  ASSERT_TRUE(context_->detach(region).ok());
}

}  // namespace
}  // namespace penstock::test
