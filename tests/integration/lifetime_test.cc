// What a Context does for requests in flight while it moves or closes, and while nobody waits.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <vector>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

TEST_F(ContextTest, is_moved_with_everything_in_flight) {
  Context first = make_context();
  const Store store = first.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Ticket ticket = submit_read(first, store, Region::host(memory.data(), memory.size()));
  Context second = std::move(first);
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(holds_content(memory, 1, 0));
  EXPECT_TRUE(second.read(store, 0, Region::host(memory.data(), 100)).ok());
  Context third = make_context();
  third = std::move(second);
  EXPECT_TRUE(third.read(store, 0, Region::host(memory.data(), 100)).ok());
}

TEST_F(ContextTest, runs_on_when_tickets_are_dropped) {
  std::atomic<int> ended{0};
  {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(16 * 4096);
    RequestOptions options;
    options.on_end = [&](const Report& report) { ended += report.outcome != Outcome::pending ? 1 : 1000; };
    for (std::size_t i = 0; i < 16; ++i) submit_read(context, store, Region::host(&memory[i * 4096], 4096), options);
    EXPECT_TRUE(eventually([&] { return ended == 16; }));
    EXPECT_TRUE(holds_content(std::span(memory).last(4096), 1, 0));
  }
  EXPECT_EQ(ended, 16);
}

TEST_F(ContextTest, runs_on_when_nobody_waits_or_listens) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(16 * 4096);
  for (std::size_t i = 0; i < 16; ++i) submit_read(context, store, Region::host(&memory[i * 4096], 4096));
  EXPECT_TRUE(eventually([&] { return context.statistics().requests == 16; }));
  EXPECT_EQ(context.statistics().requests_failed, 0U);
}

TEST_F(ContextTest, ends_every_request_when_it_closes_and_leaves_the_tickets_true) {
  const std::string path = folder_.path("sparse");
  write_file(path, {});
  const std::size_t size = 1 << 30;
  std::filesystem::resize_file(path, size);
  options_.cache = Cache::bypass;
  std::vector<Ticket> tickets;
  auto context = std::make_unique<Context>(make_context());
  Buffer memory = context->allocate(Domain::host(), size).value();
  {
    const Store store = context->open(path).value();
    for (std::size_t i = 0; i < 4; ++i) {
      tickets.push_back(submit_read(*context, store, memory.region().part(i * size / 4, size / 4)));
    }
  }
  context.reset();
  for (Ticket& ticket : tickets) {
    ASSERT_TRUE(ticket.ended());
    const Report report = ticket.report();
    EXPECT_TRUE(report.outcome == Outcome::done || report.error->code == Code::closed) << message_of(report);
    EXPECT_EQ(ticket.wait(), report.outcome);
    EXPECT_EQ(ticket.cancel(), report.outcome);
    EXPECT_FALSE(report.reason.empty());
  }
}

TEST_F(ContextTest, reports_what_is_known_while_a_request_runs) {
  options_.cache = Cache::bypass;
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Ticket ticket = submit_read(context, store, Region::host(memory.data(), memory.size()));
  while (!ticket.ended()) {
    const Report report = ticket.report();
    EXPECT_LE(report.bytes, size_bytes);
    EXPECT_FALSE(report.engine.empty());
  }
  EXPECT_TRUE(ticket.report().ok());
  EXPECT_EQ(ticket.bytes_done(), size_bytes);
}

}  // namespace
}  // namespace penstock::test
