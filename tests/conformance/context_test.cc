// What every engine must do when core drives it, seen through the public API.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "conformance/every_engine.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

INSTANTIATE_TEST_SUITE_P(Engines, EveryEngine, testing::ValuesIn(engine_cases()), testing::PrintToStringParamName());

TEST_P(EveryEngine, reads_what_it_wrote) {
  Context context = make_context();
  const std::size_t size = (5 << 20) + 123;
  auto bytes = content(7, 0, size);
  Store store = context.open(make_store("file", size), to_write()).value();
  const Report written = context.write(store, 0, Region::host(bytes.data(), size), {.durable = true});
  ASSERT_TRUE(written.ok()) << written.error->message;
  EXPECT_EQ(written.bytes, size);
  EXPECT_TRUE(holds_content(bytes_in("file"), 7, 0));

  GuardedMemory memory(size);
  const Report read = context.read(store, 0, memory.region());
  ASSERT_TRUE(read.ok()) << read.error->message;
  EXPECT_TRUE(holds_content(memory.bytes(), 7, 0));
}

TEST_P(EveryEngine, reads_every_alignment_cold_and_cached) {
  const std::size_t size = (3 << 20) + 1000;
  const std::string name = make_store("file", size);
  for (const Cache cache : {Cache::automatic, Cache::keep, Cache::bypass}) {
    if (cache == Cache::keep && !are_files()) continue;  // there is none to keep it in
    Options options = small_lanes();
    options.cache = cache;
    Context context = make_context(options);
    Store store = context.open(name).value();
    for (const bool cold : {true, false}) {
      if (!cold && !are_files()) continue;
      for (const std::uint64_t offset : {0, 1, 511, 512, 4095, 4096, 4097, 65537, 1048575}) {
        for (const std::size_t length : {1, 100, 512, 4095, 4096, 4097, 8192, 70000, 1 << 20, (2 << 20) + 3}) {
          if (offset + length > size) continue;
          cold ? make_cold("file") : make_cached("file");
          GuardedMemory memory(length);
          const Report report = context.read(store, offset, memory.region());
          ASSERT_TRUE(report.ok()) << report.error->message;
          ASSERT_EQ(report.bytes, length);
          ASSERT_EQ(std::accumulate(report.routes.begin(), report.routes.end(), std::uint64_t{0}), length);
          ASSERT_TRUE(holds_content(memory.bytes(), 1, offset)) << offset << " + " << length;
        }
      }
    }
  }
}

TEST_P(EveryEngine, writes_every_alignment_and_touches_nothing_else) {
  const std::size_t size = (2 << 20) + 777;
  const std::string name = make_store("file", size);
  auto expected = content(1, 0, size);
  std::uint64_t seed = 2;
  for (const Cache cache : {Cache::automatic, Cache::bypass}) {
    Options options = small_lanes();
    options.cache = cache;
    Context context = make_context(options);
    Store store = context.open(name, to_write()).value();
    for (const std::uint64_t offset : {0, 1, 512, 4095, 4096, 5000, 1 << 20}) {
      for (const std::size_t length : {1, 511, 4096, 4097, 10000, 1 << 20}) {
        const auto bytes = content(seed++, offset, length);
        // An odd address: direct operations can't take it as it is.
        std::vector<std::byte> shifted(length + 1);
        std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
        const Report report = context.write(store, offset, Region::host(shifted.data() + 1, length));
        ASSERT_TRUE(report.ok()) << report.error->message;
        const auto now = bytes_in("file");
        const std::span<const std::byte> all(now);
        ASSERT_EQ(all.size(), size);
        ASSERT_TRUE(same_bytes(all.subspan(offset, length), bytes)) << offset << " + " << length;
        std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
        ASSERT_TRUE(same_bytes(all, expected)) << "beside " << offset << " + " << length;
      }
    }
  }
}

TEST_P(EveryEngine, moves_many_ranges_of_several_stores_in_one_request) {
  Context context = make_context(small_lanes());
  const std::size_t size = 1 << 20;
  const Store stores[] = {context.open(make_store("a", size, 1)).value(),
                          context.open(make_store("b", size, 2)).value()};
  make_cold("a");
  std::vector<std::byte> memory(10'000 * 100);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 10'000; ++i) {
    ranges.push_back({&stores[i % 2], i * 7919 % (size - 100), Region::host(&memory[i * 100], i % 101)});
  }
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << report.error->message;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    ASSERT_TRUE(holds_content({ranges[i].memory.data, ranges[i].memory.size_bytes}, 1 + i % 2, ranges[i].offset)) << i;
  }
}

TEST_P(EveryEngine, moves_nothing_when_asked_for_nothing) {
  Context context = make_context();
  Store store = context.open(make_store("file", 10)).value();
  EXPECT_TRUE(context.read(store, 10, Region::host(nullptr, 0)).ok());
  EXPECT_TRUE(context.transfer(Direction::read, {}).ok());
  Store empty = context.open(make_store("empty", 0)).value();
  EXPECT_TRUE(context.read(empty, 0, Region::host(nullptr, 0)).ok());
}

TEST_P(EveryEngine, refuses_ranges_past_the_end_before_a_byte_moves) {
  Context context = make_context();
  Store store = context.open(make_store("file", 1000)).value();
  std::vector<std::byte> memory(store.info().size_bytes + 1, std::byte{0xaa});
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::out_of_range);
  EXPECT_EQ(memory[0], std::byte{0xaa});
  const Report overflow = context.read(store, UINT64_MAX, Region::host(memory.data(), 10));
  EXPECT_EQ(overflow.error->code, Code::invalid_argument);
}

TEST_P(EveryEngine, keeps_more_operations_than_its_queue_holds) {
  Options options;
  options.lanes = 1;
  options.operations_in_flight = 2;
  options.storage_chunk_bytes = 4096;
  Context context = make_context(options);
  const std::string name = make_store("file", 1 << 20);
  make_cold("file");
  Store store = context.open(name).value();
  GuardedMemory memory(1 << 20);
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_content(memory.bytes(), 1, 0));
}

TEST_P(EveryEngine, reads_a_range_far_into_a_huge_file) {
  const std::uint64_t size = std::uint64_t{1} << 40;
  const auto name = make_zeros("sparse", size);
  if (!name) GTEST_SKIP() << "no store of 1 TiB here";
  Context context = make_context();
  Store store = context.open(*name).value();
  GuardedMemory memory(5000);
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{1});
  ASSERT_TRUE(context.read(store, size - 5000, memory.region()).ok());
  EXPECT_TRUE(std::all_of(memory.bytes().begin(), memory.bytes().end(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST_P(EveryEngine, serves_attached_and_unattached_memory_alike) {
  Context context = make_context();
  const std::size_t size = 300'000;
  const std::string name = make_store("file", size);
  Store store = context.open(name).value();
  GuardedMemory own(size);
  ASSERT_TRUE(context.attach(own.region()).ok());
  make_cold("file");
  EXPECT_TRUE(context.read(store, 0, own.region()).ok());
  EXPECT_TRUE(holds_content(own.bytes(), 1, 0));
  ASSERT_TRUE(context.detach(own.region()).ok());
  EXPECT_EQ(context.detach(own.region()).error().code, Code::invalid_argument);
  std::fill(own.bytes().begin(), own.bytes().end(), std::byte{0});
  make_cold("file");
  EXPECT_TRUE(context.read(store, 0, own.region()).ok());
  EXPECT_TRUE(holds_content(own.bytes(), 1, 0));

  auto pinned = context.allocate(Domain::pinned(), size);
  if (!pinned) GTEST_SKIP() << "no pinned memory: " << pinned.error().message;
  make_cold("file");
  EXPECT_TRUE(context.read(store, 0, pinned->region()).ok());
  EXPECT_TRUE(holds_content(pinned->bytes(), 1, 0));
}

TEST_P(EveryEngine, serves_many_threads_at_once) {
  Context context = make_context(small_lanes());
  const std::size_t size = 4 << 20;
  const std::string name = make_store("file", size);
  make_cold("file");
  Store store = context.open(name).value();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 50; ++i) {
        const std::size_t length = 1 + (t * 131 + i * 7919) % 200'000;
        const std::uint64_t offset = (t * 7 + i * 104'729) % (size - length);
        std::vector<std::byte> memory(length);
        const Report report = context.read(store, offset, Region::host(memory.data(), length));
        if (!report.ok() || !holds_content(memory, 1, offset)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(EveryEngine, ends_each_of_many_live_tickets_once) {
  Options options;
  options.lanes = 1;
  Context context = make_context(options);
  const std::string name = make_store("file", 1 << 20);
  Store store = context.open(name).value();
  std::vector<std::byte> memory(256 * 4096);
  std::vector<Ticket> tickets;
  std::atomic<int> ended{0};
  for (std::size_t i = 0; i < 256; ++i) {
    const Range range{&store, i * 4096, Region::host(&memory[i * 4096], 4096)};
    RequestOptions request;
    request.on_end = [&](const Report& report) { ended += report.ok() ? 1 : 1000; };
    tickets.push_back(context.submit(Direction::read, {&range, 1}, request).value());
  }
  for (const Ticket& ticket : tickets) EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(holds_content(memory, 1, 0));
  { const Context closing = std::move(context); }
  EXPECT_EQ(ended, 256);
}

TEST_P(EveryEngine, ends_small_tickets_that_nobody_waits_for) {
  Context context = make_context(small_lanes());
  const std::string name = make_store("file", 1 << 20);
  make_cold("file");
  Store store = context.open(name).value();
  std::vector<std::byte> memory(200 * 4096);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < 200; ++i) {
    const Range range{&store, i * 4096, Region::host(&memory[i * 4096], 4096)};
    tickets.push_back(context.submit(Direction::read, {&range, 1}).value());
  }
  for (int i = 0; i < 1000; ++i) {
    if (std::all_of(tickets.begin(), tickets.end(), [](const Ticket& ticket) { return ticket.ended(); })) break;
    std::this_thread::sleep_for(10ms);
  }
  for (const Ticket& ticket : tickets) EXPECT_EQ(ticket.outcome(), Outcome::done);
  EXPECT_TRUE(holds_content(memory, 1, 0));
}

TEST_P(EveryEngine, lets_any_thread_wait_for_any_ticket) {
  Context context = make_context(small_lanes());
  const std::string name = make_store("file", 4 << 20);
  make_cold("file");
  Store store = context.open(name).value();
  constexpr std::size_t threads = 4;
  constexpr std::size_t each = 64;
  std::vector<std::byte> memory(threads * each * 4096);
  std::vector<std::vector<Ticket>> tickets(threads, std::vector<Ticket>(each));
  std::atomic<std::size_t> submitted{0};
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      for (std::size_t i = 0; i < each; ++i) {
        const std::uint64_t at = (t * each + i) * 4096;
        const Range range{&store, at, Region::host(&memory[at], 4096)};
        tickets[t][i] = context.submit(Direction::read, {&range, 1}).value();
      }
      ++submitted;
      while (submitted != threads) std::this_thread::yield();
      for (const Ticket& ticket : tickets[(t + 1) % threads]) {
        EXPECT_EQ(ticket.wait(), Outcome::done) << ticket.report().to_string();
      }
    });
  }
  for (auto& thread : running) thread.join();
  EXPECT_TRUE(holds_content(memory, 1, 0));
}

TEST_P(EveryEngine, waits_for_whichever_ticket_ends_first) {
  Context context = make_context(small_lanes());
  const std::string name = make_store("file", 4 << 20);
  make_cold("file");
  Store store = context.open(name).value();
  std::vector<std::byte> memory(4 << 20);
  std::vector<Ticket> tickets;
  // Long and short ones: those that lanes work on, and those that the waiting thread works on.
  std::size_t at = 0;
  for (const std::size_t length : {1 << 20, 4096, 8192, 1 << 20, 100}) {
    const Range range{&store, 0, Region::host(&memory[at], length)};
    tickets.push_back(context.submit(Direction::read, {&range, 1}).value());
    at += length;
  }
  while (!tickets.empty()) {
    ASSERT_TRUE(Ticket::wait_any(tickets, 60s));
    const auto ended = std::erase_if(tickets, [](const Ticket& ticket) { return ticket.ended(); });
    EXPECT_GT(ended, 0U);
  }
  EXPECT_FALSE(Ticket::wait_any({}, 1ms));
}

TEST_P(EveryEngine, cancels_soon_and_stays_usable) {
  Options options = small_lanes();
  options.cache = Cache::bypass;
  Context context = make_context(options);
  const std::size_t size = std::size_t{2} << 30;
  const auto name = make_zeros("sparse", size);
  if (!name) GTEST_SKIP() << "no store of " << size << " bytes here";
  Store store = context.open(*name).value();
  Buffer memory = context.allocate(Domain::host(), size).value();
  const Range range{&store, 0, memory.region()};
  Ticket ticket = context.submit(Direction::read, {&range, 1}).value();
  const auto begun = std::chrono::steady_clock::now();
  const Outcome outcome = ticket.cancel();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  EXPECT_TRUE(outcome == Outcome::cancelled || outcome == Outcome::done) << outcome_name(outcome);
  if (outcome == Outcome::cancelled) {
    EXPECT_EQ(ticket.report().error->code, Code::cancelled);
  }
  EXPECT_EQ(ticket.cancel(), outcome) << "a request ends once";
  EXPECT_TRUE(context.read(store, 0, memory.region().part(0, 4096)).ok());
}

TEST_P(EveryEngine, ends_by_its_deadline) {
  Options options = small_lanes();
  options.cache = Cache::bypass;
  Context context = make_context(options);
  const std::size_t size = std::size_t{4} << 30;
  const auto name = make_zeros("sparse", size);
  if (!name) GTEST_SKIP() << "no store of " << size << " bytes here";
  Store store = context.open(*name).value();
  Buffer memory = context.allocate(Domain::host(), size).value();
  const Report report = context.read(store, 0, memory.region(), {.deadline_seconds = 0.001});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::timed_out) << report.error->message;
}

TEST_P(EveryEngine, refuses_to_write_what_was_opened_for_reading) {
  Context context = make_context();
  Store store = context.open(make_store("file", 100)).value();
  std::byte byte{};
  const Report report = context.write(store, 0, Region::host(&byte, 1));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::read_only);
}

TEST_P(EveryEngine, counts_what_it_moves) {
  Context context = make_context();
  Store store = context.open(make_store("file", 3 << 20)).value();
  std::vector<std::byte> memory(3 << 20);
  ASSERT_TRUE(context.read(store, 0, Region::host(memory.data(), memory.size())).ok());
  const Statistics statistics = context.statistics();
  std::uint64_t bytes = 0;
  for (const auto& route : statistics.routes) {
    bytes += route.bytes;
    EXPECT_GT(route.operations, 0U);
    EXPECT_EQ(route.failed, 0U);
    EXPECT_GT(route.latency_p99_seconds, 0);
  }
  // A lane tells when it has looked at all that had ended, of which this request may be the first.
  EXPECT_TRUE(eventually([&] {
    return std::ranges::all_of(context.statistics().routes,
                               [](const RouteStatistics& route) { return route.bandwidth_effective > 0; });
  }));
  EXPECT_EQ(bytes, memory.size());
  EXPECT_EQ(statistics.requests, 1U);
  context.reset_statistics();
  EXPECT_TRUE(context.statistics().routes.empty());
}

}  // namespace
}  // namespace penstock::test
