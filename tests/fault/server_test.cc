// A server that moves the bytes of a file and then does not tell whether the file has changed, or does not let go of
// it: the request ends in time all the same, and its lane goes on with others.
#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "support/served_engine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t file_bytes = 2 << 20;

class SilentServer : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"served", "local"}) write_file(folder_.path(name), content(1, 0, file_bytes));
  }
  void TearDown() override {
    server_->answer();
    context_.reset();
    EXPECT_TRUE(eventually([&] { return server_.use_count() == 1; })) << "who asked goes when it has its answer";
  }

  Store open(const std::string& name) {
    if (!context_) {
      engine::Table table;
      table.push_back(std::make_unique<ServedEngine>(server_));
      context_ = ContextBuilder::build(std::move(table), options_).value();
    }
    return context_->open(folder_.path(name)).value();
  }
  // A read of all bytes, after which the server is silent.
  Ticket read_served(double deadline_seconds = 0) {
    const Store store = open("served");
    server_->hang_after(1);  // when the request is made
    const Range range{&store, 0, Region::host(memory_.data(), memory_.size())};
    Ticket ticket = context_->submit(Direction::read, {&range, 1}, {.deadline_seconds = deadline_seconds}).value();
    EXPECT_TRUE(eventually([&] { return server_->waiting() == 1; }));
    return ticket;
  }

  Options options_{.lanes = 1, .deadlines = patient};
  TemporaryFolder folder_;
  std::shared_ptr<Server> server_ = std::make_shared<Server>();
  std::optional<Context> context_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(file_bytes);
};

TEST_F(SilentServer, a_request_ends_by_its_deadline_and_its_lane_goes_on) {
  Ticket ticket = read_served(1);
  ASSERT_TRUE(ticket.wait_for(30s));
  EXPECT_EQ(ticket.outcome(), Outcome::failed);
  EXPECT_EQ(ticket.report().bytes, file_bytes);
  EXPECT_EQ(ticket.report().error->code, Code::timed_out);
  EXPECT_NE(ticket.report().error->message.find("whether it has changed"), std::string::npos)
      << ticket.report().error->message;
  EXPECT_EQ(context_->statistics().lanes_replaced, 0U);
  EXPECT_EQ(context_->statistics().quarantined_bytes, 0U);
}

TEST_F(SilentServer, others_on_the_lane_are_served_meanwhile) {
  Ticket ticket = read_served();
  const Store local = open("local");
  std::vector<std::byte> memory(file_bytes);
  const Report report = context_->read(local, 0, Region::host(memory.data(), memory.size()), {.deadline_seconds = 30});
  EXPECT_TRUE(report.ok());
  EXPECT_TRUE(holds_content(memory, 1, 0));
  EXPECT_FALSE(ticket.ended());
  server_->answer();
  EXPECT_EQ(ticket.wait(), Outcome::done) << "an answer that comes late is as good";
}

TEST_F(SilentServer, a_request_without_a_deadline_ends_when_it_has_stalled) {
  options_.deadlines.stall_seconds = 1;
  Ticket ticket = read_served();
  ASSERT_TRUE(ticket.wait_for(30s));
  EXPECT_EQ(ticket.report().error->code, Code::timed_out);
}

TEST_F(SilentServer, a_request_can_be_cancelled) {
  Ticket ticket = read_served();
  ticket.cancel();
  ASSERT_TRUE(ticket.wait_for(30s));
  EXPECT_EQ(ticket.outcome(), Outcome::cancelled);
}

TEST_F(SilentServer, closing_the_context_ends_the_request) {
  Ticket ticket = read_served();
  context_.reset();
  EXPECT_EQ(ticket.outcome(), Outcome::cancelled);
  EXPECT_EQ(ticket.report().error->code, Code::closed);
  ticket = Ticket();
}

TEST_F(SilentServer, a_change_is_found_by_a_late_answer) {
  Ticket ticket = read_served();
  std::filesystem::resize_file(folder_.path("served"), file_bytes + 1);
  server_->answer();
  ASSERT_TRUE(ticket.wait_for(30s));
  EXPECT_EQ(ticket.report().error->code, Code::changed);
}

TEST_F(SilentServer, an_answer_that_is_an_error_is_told_as_such_and_not_as_a_change) {
  Ticket ticket = read_served();
  make_unknowable(folder_.path("served"));
  server_->answer();
  ASSERT_TRUE(ticket.wait_for(30s));
  const Report report = ticket.report();
  expect_unknowable(report, "whether it has changed");
  EXPECT_FALSE(report.error->hint.empty());
  ASSERT_EQ(report.failures.size(), 1U);
  EXPECT_EQ(report.failures[0].code, report.error->code);
}

TEST_F(SilentServer, without_a_thread_to_ask_it_a_request_fails_by_name) {
  const Store store = open("served");
  const Store other = open("served");
  const auto read_all = [&](double deadline_seconds) {
    return context_->read(store, 0, Region::host(memory_.data(), memory_.size()),
                          {.deadline_seconds = deadline_seconds});
  };
  ASSERT_TRUE(read_all(0).ok()) << "the lane has its threads";
  server_->hang_after(0);
  std::thread asking([&] { EXPECT_TRUE(other.size_bytes().ok()); });
  EXPECT_TRUE(eventually([&] { return server_->waiting() == 1; }));
  Report report;
  {
    const NoMoreThreads none;
    // On a busy machine there may be more threads than the one that asks: each takes a request until its deadline.
    int tries = 0;
    do report = read_all(0.5);
    while (report.error && report.error->code == Code::timed_out && ++tries < 10);
  }
  server_->answer();
  asking.join();
  ASSERT_EQ(report.outcome, Outcome::failed);
  EXPECT_EQ(report.error->code, Code::out_of_memory);
  EXPECT_NE(report.error->message.find("no thread"), std::string::npos) << report.error->message;
}

TEST_F(SilentServer, holds_up_nobody_past_the_deadline) {
  options_.deadlines = {.stall_seconds = 2, .cancel_grace_seconds = 0.1, .close_seconds = 0.2};
  open("local");
  Store store = context_->open(folder_.path("served"), {.access = Access::replace, .size_bytes = 4096}).value();
  server_->hang_after(0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(context_->open(folder_.path("served")).error().code, Code::timed_out);
  EXPECT_EQ(store.size_bytes().error().code, Code::timed_out);
  EXPECT_EQ(store.commit().error().code, Code::timed_out);
  EXPECT_EQ(context_->write(store, 4096, Region::host(memory_.data(), 4096)).error->code, Code::timed_out);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  EXPECT_EQ(server_->waiting(), 4);
  server_->answer();
}

TEST_F(SilentServer, holds_up_nobody_who_closes_its_file) {
  options_.deadlines = {.cancel_grace_seconds = 0.1, .close_seconds = 0.2};
  if (!server_->hang_in_closing()) GTEST_SKIP() << "there is no network";
  Store store = open("served");
  const auto begin = std::chrono::steady_clock::now();
  store = Store();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s) << "the peer would take 60 s";
}

// Whatever may wait, of a store that is open to be replaced.
struct Verb {
  std::string name;
  std::function<std::optional<Error>(const Context&, Store&)> run;
};
void PrintTo(const Verb& verb, std::ostream* out) {
  *out << verb.name;
}
template <typename Outcome>
std::optional<Error> error_of(const Outcome& outcome) {
  return outcome ? std::nullopt : std::optional(outcome.error());
}
std::vector<Verb> verbs() {
  static std::array<std::byte, 4096> bytes;
  const auto range_of = [](const Store& store) { return Range{&store, 0, Region::host(bytes.data(), bytes.size())}; };
  return {
      {"open", [](const Context& context, Store& store) { return error_of(context.open(store.info().name)); }},
      {"size", [](const Context&, Store& store) { return error_of(store.size_bytes()); }},
      {"reserve",
       [](const Context& context, Store& store) {
         return context.write(store, file_bytes, Region::host(bytes.data(), bytes.size())).error;
       }},
      {"prefetch",
       [=](const Context& context, Store& store) {
         const Range range = range_of(store);
         return error_of(context.prefetch({&range, 1}));
       }},
      {"view", [](const Context&, Store& store) { return error_of(store.view()); }},
      {"commit", [](const Context&, Store& store) { return error_of(store.commit()); }},
      {"abort", [](const Context&, Store& store) { return error_of(store.abort()); }},
  };
}

class EveryVerb : public SilentServer, public testing::WithParamInterface<Verb> {
 protected:
  Store open_to_write() {
    engine::Table table;
    table.push_back(fault::make_engine(std::make_unique<ServedEngine>(server_), {}, control_));
    context_ = ContextBuilder::build(std::move(table), options_).value();
    return context_->open(folder_.path("served"), {.access = Access::replace, .size_bytes = file_bytes}).value();
  }
  const std::shared_ptr<fault::FaultControl> control_ = std::make_shared<fault::FaultControl>();
};

TEST_P(EveryVerb, ends_in_time_though_its_engine_never_answers) {
  options_.deadlines = {.stall_seconds = 2, .cancel_grace_seconds = 0.1, .close_seconds = 0.2};
  Store store = open_to_write();
  control_->hang_calls(true);
  const auto begin = std::chrono::steady_clock::now();
  const auto error = GetParam().run(*context_, store);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, Code::timed_out) << error->message;
  EXPECT_NE(error->message.find("served"), std::string::npos) << error->message;
  store = Store();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
  EXPECT_GE(control_->stuck(), 1U);
  const Store local = context_->open(folder_.path("local")).value();
  EXPECT_TRUE(context_->read(local, 0, Region::host(memory_.data(), memory_.size())).ok()) << "others are served";
  control_->hang_calls(false);
  control_->release_stuck();
}

TEST_P(EveryVerb, brings_an_answer_that_comes_late) {
  Store store = open_to_write();
  control_->hang_calls(true);
  std::optional<Error> error;
  std::thread asking([&] { error = GetParam().run(*context_, store); });
  EXPECT_TRUE(eventually([&] { return control_->stuck() == 1; }));
  std::this_thread::sleep_for(500ms);
  control_->hang_calls(false);
  control_->release_stuck();
  asking.join();
  EXPECT_FALSE(error) << error->message;
}

INSTANTIATE_TEST_SUITE_P(Of, EveryVerb, testing::ValuesIn(verbs()), [](const auto& verb) { return verb.param.name; });

TEST_F(SilentServer, a_lane_that_closes_the_file_goes_on_with_others) {
  const auto control = std::make_shared<fault::FaultControl>();
  engine::Table table;
  table.push_back(fault::make_engine(std::make_unique<ServedEngine>(server_), {.never = 1000}, control));
  context_ = ContextBuilder::build(std::move(table), options_).value();
  constexpr std::size_t unchecked_bytes = 512 << 10;  // so little that nobody is asked whether it has changed
  const auto start_reading = [&](const char* name) {
    const Store store = context_->open(folder_.path(name)).value();
    const Range range{&store, 0, Region::host(memory_.data(), unchecked_bytes)};
    Ticket ticket = context_->submit(Direction::read, {&range, 1}).value();
    EXPECT_TRUE(eventually([&] { return control->stuck() == 1; }));
    return ticket;
  };
  if (!server_->hang_in_closing()) GTEST_SKIP() << "there is no network";
  start_reading("served");  // and forget about it
  control->release_stuck();
  const auto begin = std::chrono::steady_clock::now();
  Ticket ticket = start_reading("local");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  control->release_stuck();
  EXPECT_EQ(ticket.wait(), Outcome::done);
}

}  // namespace
}  // namespace penstock::test
