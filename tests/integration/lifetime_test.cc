// What a Context does for requests in flight while it moves or closes, and while nobody waits.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
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

TEST_F(ContextTest, stays_open_until_the_last_copy_has_gone) {
  Store store;
  Context copy;
  {
    const Context context = make_context();
    store = context.open(make_file("file")).value();
    copy = context;
    EXPECT_EQ(copy, context);
    EXPECT_NE(copy, make_context());
  }
  std::vector<std::byte> memory(size_bytes);
  EXPECT_TRUE(copy.read(store, 0, Region::host(memory.data(), memory.size())).ok());
  EXPECT_TRUE(holds_content(memory, 1, 0));
}

TEST_F(ContextTest, is_closed_for_all_copies) {
  const Context context = make_context();
  const Context copy = context;
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> bytes(4096);
  const Region memory = Region::host(bytes.data(), bytes.size());
  const Range range{&store, 0, memory};
  context.close();
  const auto expect_closed = [](const std::optional<Error>& error) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code, Code::closed) << error->message;
  };
  expect_closed(copy.open("file").error());
  expect_closed(copy.allocate(Domain::host(), 10).error());
  expect_closed(copy.attach(memory).error());
  expect_closed(copy.read(store, 0, memory).error);
  expect_closed(copy.zero(store, 0, 10).error);
  expect_closed(copy.submit(Direction::read, {&range, 1}).error());
  expect_closed(copy.prefetch({&range, 1}).error());
  EXPECT_TRUE(copy);
  EXPECT_EQ(store.size_bytes().value(), size_bytes) << "a Store may outlive its Context";
  copy.close();
}

TEST_F(ContextTest, may_be_closed_by_several_threads_while_others_read) {
  for (int round = 0; round < 5; ++round) {
    const Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::atomic<bool> is_wrong{false};
    std::vector<std::jthread> threads;
    for (int reader = 0; reader < 3; ++reader) {
      threads.emplace_back([&] {
        std::vector<std::byte> memory(1 << 20);
        const RequestOptions past_cache{.cache = Cache::bypass};
        while (true) {
          const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()), past_cache);
          if (!report.ok()) {
            is_wrong = is_wrong || report.error->code != Code::closed;
            return;
          }
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int closer = 0; closer < 2; ++closer) threads.emplace_back([&] { context.close(); });
    threads.clear();
    EXPECT_FALSE(is_wrong);
  }
}

// What a function that opens something returns.
template <typename Product>
struct Opened {
  Product product;
  std::vector<std::byte> memory;
};

TEST_F(ContextTest, is_kept_open_by_rows_that_a_function_returns) {
  const std::string path = make_file("rows");
  const auto open_rows = [&] {
    const Context context = make_context();
    return Opened<Rows>{Rows::open_raw(context, path, {.row_bytes = 4096}).value(), std::vector<std::byte>(4096)};
  };
  Opened<Rows> opened = open_rows();
  const std::vector<Opened<Rows>> moved = [&] {
    std::vector<Opened<Rows>> all;
    all.push_back(std::move(opened));
    return all;
  }();
  auto memory = moved[0].memory;
  const std::uint64_t index = 3;
  const auto report = moved[0].product.gather(RowNumbers(std::span(&index, 1)), Region::host(memory.data(), 4096));
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(holds_content(memory, 1, std::size_t{3} * 4096));
}

TEST_F(ContextTest, is_kept_open_by_kinds_that_a_function_returns) {
  const std::string path = make_file("kinds");
  const auto create_kinds = [&] {
    const Context context = make_context();
    return Kinds::create(context, path).value();
  };
  const Kinds kinds = create_kinds();
  EXPECT_TRUE(kinds.list().empty());
}

TEST_F(ContextTest, waiting_for_any_of_many_tickets_returns_when_one_has_ended) {
  const Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  for (int round = 0; round < 20; ++round) {
    std::vector<Ticket> tickets;
    for (std::size_t i = 0; i < 200; ++i) {
      const RequestOptions past_cache{.cache = i % 3 == 0 ? Cache::bypass : Cache::automatic};
      tickets.push_back(submit_read(context, store, Region::host(&memory[i * 4096], 4096), past_cache));
    }
    while (!tickets.empty()) {
      ASSERT_TRUE(Ticket::wait_any(tickets, std::chrono::seconds(20)));
      std::erase_if(tickets, [](const Ticket& ticket) { return ticket.ended(); });
    }
  }
}

TEST_F(ContextTest, several_threads_may_wait_for_any_of_the_same_tickets) {
  const Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const RequestOptions past_cache{.cache = Cache::bypass};
  for (int round = 0; round < 50; ++round) {
    std::vector<Ticket> tickets;
    tickets.push_back(submit_read(context, store, Region::host(memory.data(), memory.size()), past_cache));
    tickets.push_back(submit_read(context, store, Region::host(memory.data(), 4096), past_cache));
    std::atomic<int> returned{0};
    std::vector<std::jthread> threads;
    for (int waiter = 0; waiter < 3; ++waiter) {
      threads.emplace_back([&] { returned += Ticket::wait_any(tickets, std::chrono::seconds(20)) ? 1 : 0; });
    }
    threads.clear();
    EXPECT_EQ(returned, 3);
    for (const Ticket& ticket : tickets) ticket.wait();
  }
}

}  // namespace
}  // namespace penstock::test
