// Requests of every size and shape: ahead of time, over several files, by the million, and none of them possible.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "integration/context_fixture.h"
#include "support/cache_limit.h"

namespace penstock::test {
namespace {

TEST_F(ContextTest, prefetches_no_more_than_the_window_and_the_next_read_is_cached) {
  const CacheLimit limit(1);
  options_.prefetch_window_bytes = 1 << 20;
  Context context = make_context();
  const std::string path = make_file("file");
  evict(path);
  const Store store = context.open(path).value();
  if (!store.info().direct) GTEST_SKIP() << "without direct transfers, reading itself fills the page cache";
  std::vector<std::byte> memory(1 << 20);
  const Region region = Region::host(memory.data(), memory.size());
  const Range all[] = {{&store, 0, Region::host(nullptr, 512 << 10)},
                       {&store, 512 << 10, Region::host(nullptr, 3 << 20)}};
  EXPECT_EQ(context.prefetch(all).value(), 1U << 20);
  EXPECT_TRUE(eventually([&] { return bytes_by(context.read(store, 0, region), Route::cached) == memory.size(); }));
  EXPECT_EQ(bytes_by(context.read(store, 3 << 20, region), Route::direct), memory.size()) << "past the window";

  const Range beyond{&store, size_bytes, Region::host(nullptr, 1)};
  EXPECT_EQ(context.prefetch({&beyond, 1}).error().code, Code::out_of_range);
  const Range overflow{&store, UINT64_MAX, Region::host(nullptr, 2)};
  EXPECT_EQ(context.prefetch({&overflow, 1}).error().code, Code::invalid_argument);
  const Range nowhere{nullptr, 0, region};
  EXPECT_EQ(context.prefetch({&nowhere, 1}).error().code, Code::invalid_argument);
}

TEST_F(ContextTest, compares_a_store_with_what_it_was_when_it_was_opened_where_that_is_asked_for) {
  Context context = make_context();
  const std::string path = make_file("file");
  const Store store = context.open(path).value();
  std::vector<std::byte> memory(2 << 20);
  for (const std::size_t length : {std::size_t{4096}, memory.size()}) {
    EXPECT_TRUE(context.read(store, 0, Region::host(memory.data(), length), {.as_opened = true}).ok());
  }
  const struct timespec long_ago[2] = {};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), long_ago, 0), 0);
  for (const std::size_t length : {std::size_t{4096}, memory.size()}) {
    const Region region = Region::host(memory.data(), length);
    const Report report = context.read(store, 0, region, {.as_opened = true});
    ASSERT_FALSE(report.ok()) << length;
    EXPECT_EQ(report.error->code, Code::changed) << report.error->message;
    EXPECT_TRUE(context.read(store, 0, region).ok()) << "it did not change while it was read";
  }
}

TEST_F(ContextTest, has_no_time_for_a_deadline_that_has_passed) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double request_seconds : {0.0, 3600.0}) {
    options_.deadlines.request_seconds = request_seconds;
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(size_bytes);
    // On the caller's thread, or on lanes.
    for (const std::size_t size : {std::size_t{4096}, size_bytes}) {
      const Region region = Region::host(memory.data(), size);
      for (const double spent : {-1.0, -1e-300, -infinity, nan}) {
        const Report report = context.read(store, 0, region, {.deadline_seconds = spent});
        EXPECT_EQ(report.outcome, Outcome::failed) << spent;
        ASSERT_TRUE(report.error) << spent;
        EXPECT_EQ(report.error->code, Code::timed_out);
        EXPECT_EQ(report.bytes, 0U);
        const Ticket ticket = submit_read(context, store, region, {.deadline_seconds = spent});
        EXPECT_EQ(ticket.wait(), Outcome::failed);
        EXPECT_EQ(ticket.report().error->code, Code::timed_out);
      }
      for (const double endless : {infinity, 1e300, 1e10}) {
        EXPECT_TRUE(context.read(store, 0, region, {.deadline_seconds = endless}).ok()) << endless;
      }
    }
    EXPECT_EQ(memory[0], content(1, 0, 1)[0]);
  }
}

TEST_F(ContextTest, tells_of_an_end_also_where_a_deadline_had_passed) {
  std::atomic<int> ends{0};
  {
    Context context = make_context();
    const Store store = context.open(make_file("file")).value();
    std::vector<std::byte> memory(4096);
    RequestOptions options{.deadline_seconds = -1};
    options.on_end = [&](const Report& report) { ends += report.error->code == Code::timed_out ? 1 : 100; };
    submit_read(context, store, Region::host(memory.data(), memory.size()), options);
  }
  EXPECT_EQ(ends, 1);
}

TEST_F(ContextTest, waits_no_longer_than_any_time_that_it_is_given) {
  using std::chrono::nanoseconds;
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(size_bytes);
  const Ticket ticket = submit_read(context, store, Region::host(memory.data(), memory.size()));
  for (const nanoseconds spent : {nanoseconds(-1), nanoseconds::min(), nanoseconds(0)}) {
    static_cast<void>(ticket.wait_for(spent));
    static_cast<void>(Ticket::wait_any({&ticket, 1}, spent));
  }
  EXPECT_TRUE(Ticket::wait_any({&ticket, 1}, nanoseconds::max()));
  EXPECT_TRUE(ticket.wait_for(nanoseconds::max()));
  EXPECT_TRUE(ticket.wait_for(nanoseconds::min())) << "it has ended";
  context.count_mapped(1, -1);
  context.count_mapped(1, std::numeric_limits<double>::quiet_NaN());
  context.count_mapped(1, 1e300);
  EXPECT_TRUE(context.trace(std::numeric_limits<double>::quiet_NaN()).events.empty());
}

TEST_F(ContextTest, syncs_durable_writes_of_several_files) {
  Context context = make_context();
  const Store stores[] = {context.open(folder_.path("a"), {.access = Access::create}).value(),
                          context.open(folder_.path("b"), {.access = Access::create}).value()};
  auto bytes = content(3, 0, 300'000);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 6; ++i) {
    ranges.push_back({&stores[i % 2], i / 2 * 100'000, Region::host(&bytes[i / 2 * 100'000], 100'000)});
  }
  const Report report = context.transfer(Direction::write, ranges, {.durable = true});
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_EQ(report.bytes, 600'000U);
  for (const char* name : {"a", "b"}) EXPECT_TRUE(holds_content(read_file(folder_.path(name)), 3, 0));
}

TEST_F(ContextTest, says_so_where_memory_is_not_mapped) {
  constexpr std::size_t bytes = 1 << 20;
  void* const nothing = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  const std::string path = make_file("file");
  for (const char* engine : {"posix", ""}) {
    options_.engine = engine;
    Context context = make_context();
    const Store store = context.open(path).value();
    const Report report = context.read(store, 0, Region::host(nothing, bytes));
    ASSERT_EQ(report.outcome, Outcome::failed);
    EXPECT_EQ(report.error->code, Code::invalid_argument) << report.error->message;
    EXPECT_EQ(report.error->system_error, EFAULT);
    EXPECT_NE(report.error->hint.find("the memory is not mapped"), std::string::npos) << report.error->hint;
  }
  ::munmap(nothing, bytes);
}

TEST_F(ContextTest, counts_and_forgets_while_others_work) {
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::atomic<bool> stop{false};
  std::thread watcher([&] {
    while (!stop) {
      const Statistics statistics = context.statistics();
      for (const RouteStatistics& route : statistics.routes) EXPECT_EQ(route.failed, 0U);
      EXPECT_EQ(statistics.requests_failed, 0U);
      context.reset_statistics();
    }
  });
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([&] {
      std::vector<std::byte> memory(size_bytes);
      for (int i = 0; i < 30; ++i) {
        EXPECT_TRUE(context.read(store, 0, Region::host(memory.data(), memory.size())).ok());
        EXPECT_TRUE(context.read(store, 0, Region::host(memory.data(), 100)).ok());
      }
    });
  }
  for (auto& reader : readers) reader.join();
  stop = true;
  watcher.join();
  context.reset_statistics();
  std::vector<std::byte> memory(size_bytes);
  ASSERT_TRUE(context.read(store, 0, Region::host(memory.data(), memory.size())).ok());
  std::uint64_t bytes = 0;
  for (const RouteStatistics& route : context.statistics().routes) bytes += route.bytes;
  EXPECT_EQ(bytes, size_bytes);
}

TEST_F(ContextTest, moves_a_million_ranges_in_one_request) {
  constexpr std::size_t count = under_thread_sanitizer ? 100'000 : 1'000'000;  // the number is no matter of threads
  constexpr std::size_t length = 5;
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(count * length);
  std::vector<Range> ranges(count);
  const auto offset_of = [](std::size_t i) { return i * 7919 % (size_bytes - length); };
  for (std::size_t i = 0; i < count; ++i) {
    ranges[i] = {&store, offset_of(i), Region::host(&memory[i * length], length)};
  }
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_EQ(report.bytes, memory.size());
  const auto file = content(1, 0, size_bytes);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_TRUE(same_bytes({&memory[i * length], length}, {&file[offset_of(i)], length})) << "range " << i;
  }
}

TEST_F(ContextTest, fails_each_of_many_ranges_that_no_allowed_route_can_carry) {
  options_.allowed_routes = {Route::mapped};
  Context context = make_context();
  const Store store = context.open(make_file("file")).value();
  std::vector<std::byte> memory(20 * 100);
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < 20; ++i) ranges.push_back({&store, i * 100, Region::host(&memory[i * 100], 100)});
  const Report report = context.transfer(Direction::read, ranges);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::no_route);
  EXPECT_EQ(report.failure_count, 20U);
  for (std::size_t i = 0; i < report.failures.size(); ++i) {
    EXPECT_EQ(report.failures[i].range, i);
    EXPECT_EQ(report.failures[i].offset, i * 100);
    EXPECT_EQ(report.failures[i].bytes, 100U);
  }
}

}  // namespace
}  // namespace penstock::test
