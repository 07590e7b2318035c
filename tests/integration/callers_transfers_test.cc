// Transfers that their callers make themselves: what they cost, and that they are what requests would be.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <thread>

#include "integration/allocations.h"
#include "integration/context_fixture.h"
#include "support/cache_limit.h"

namespace penstock::test {
namespace {

constexpr std::size_t page = 4096;

// Calls of this thread that read, so far; nothing where the kernel does not count them.
std::optional<std::uint64_t> read_calls() {
  std::ifstream io("/proc/thread-self/io");
  std::string key;
  std::uint64_t value = 0;
  while (io >> key >> value) {
    if (key == "syscr:") return value;
  }
  return std::nullopt;
}

class CallersTransfers : public ContextTest {
 protected:
  // Allocations of the quietest of a few.
  template <typename Action>
  static std::uint64_t fewest_allocations(Action action) {
    std::uint64_t fewest = UINT64_MAX;
    for (int i = 0; i < 5; ++i) {
      const std::uint64_t before = allocation_count();
      action();
      fewest = std::min(fewest, allocation_count() - before);
    }
    return fewest;
  }
  static Region region(std::span<std::byte> memory) { return Region::host(memory.data(), memory.size()); }

  alignas(page) std::array<std::byte, 16 * page> memory_{};
};

TEST_F(CallersTransfers, of_cached_bytes_are_one_call_without_an_allocation) {
  const std::string path = make_file("file");
  Context context = make_context();
  const Store store = context.open(path).value();
  if (store.info().locality != Locality::local) GTEST_SKIP() << "files are in memory here";
  warm(path);
  const auto read = [&](std::uint64_t offset, std::size_t size) {
    const Report report = context.read(store, offset, region(std::span(memory_).first(size)));
    ASSERT_TRUE(report.ok());
    ASSERT_EQ(bytes_by(report, Route::cached), size) << report.reason;
    ASSERT_EQ(report.reason, "in page cache");
  };
  read(0, page);
  if (!read_calls()) GTEST_SKIP() << "the kernel does not count calls";
  EXPECT_EQ(fewest_allocations([&] { read(page, page); }), 0U);
  EXPECT_EQ(fewest_allocations([&] { read(12345, 6789); }), 0U);
  const std::uint64_t before = *read_calls();
  const std::uint64_t of_asking = *read_calls() - before;
  for (int i = 0; i < 100; ++i) read(i * 3000, 5000);
  EXPECT_EQ(*read_calls() - before, 100 + 2 * of_asking);
  EXPECT_TRUE(holds_content(std::span(memory_).first(5000), 1, 99 * 3000));
}

TEST_F(CallersTransfers, of_a_hot_set_read_each_block_from_the_disk_once) {
  const std::string path = make_file("file");
  Context context = make_context();
  const Store store = context.open(path).value();
  if (!store.info().direct) GTEST_SKIP() << "no direct I/O here";
  evict(path);
  std::uint64_t waited_for = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t offset = i * 7 % 32 * 17 * page;
    const Report report = context.read(store, offset, region(std::span(memory_).first(page)));
    ASSERT_TRUE(report.ok());
    ASSERT_TRUE(holds_content(std::span(memory_).first(page), 1, offset));
    EXPECT_EQ(bytes_by(report, Route::direct), 0U);
    waited_for += bytes_by(report, Route::buffered);
  }
  EXPECT_LE(waited_for, 32 * page);
  EXPECT_GT(waited_for, 0U);
}

TEST_F(CallersTransfers, are_counted) {
  const std::string path = make_file("file");
  Context context = make_context();
  const Store store = context.open(path).value();
  warm(path);
  std::array<std::thread, 4> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      std::array<std::byte, page> memory{};
      for (std::uint64_t i = 0; i < 500; ++i) {
        EXPECT_TRUE(context.read(store, i * page % size_bytes, region(memory)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Statistics statistics = context.statistics();
  EXPECT_EQ(statistics.requests, 2000U);
  EXPECT_EQ(statistics.requests_failed, 0U);
  std::uint64_t bytes = 0;
  std::uint64_t operations = 0;
  for (const RouteStatistics& route : statistics.routes) {
    bytes += route.bytes;
    operations += route.operations;
    EXPECT_GT(route.bandwidth_effective, 0);
    EXPECT_LT(route.bandwidth_effective, 1e12);
  }
  EXPECT_EQ(bytes, 2000 * page);
  EXPECT_EQ(operations, 2000U);
  context.reset_statistics();
  EXPECT_EQ(context.statistics().requests, 0U);
}

TEST_F(CallersTransfers, obey_the_allowed_routes) {
  const std::string path = make_file("file");
  for (const Route route : {Route::cached, Route::buffered, Route::direct}) {
    options_.allowed_routes = {route};
    Context context = make_context();
    const Store store = context.open(path).value();
    if (!store.info().direct) GTEST_SKIP() << "no direct I/O here";
    warm(path);
    const Report report = context.read(store, 0, region(std::span(memory_).first(page)));
    EXPECT_TRUE(report.ok()) << message_of(report);
    EXPECT_EQ(bytes_by(report, route), page) << report.reason;
  }
}

TEST_F(CallersTransfers, of_several_mebibytes_are_made_while_lanes_have_no_processors_for_them) {
  options_.lanes = 1;
  const std::string path = make_file("file");
  Context context = make_context();
  const Store store = context.open(path).value();
  warm(path);
  std::vector<std::byte> memory(size_bytes);
  const Report report = context.read(store, 0, region(memory));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report.cpu_seconds, report.seconds) << "by the caller";
  EXPECT_EQ(report.limit, Limit::cpu);
  EXPECT_TRUE(holds_content(memory, 1, 0));
}

TEST_F(CallersTransfers, write_what_fits_through_the_page_cache) {
  const std::string path = make_file("file");
  Context context = make_context();
  const auto bytes = content(5, 0, 2 << 20);
  std::vector<std::byte> memory(bytes.begin(), bytes.end());
  for (const Access access : {Access::write, Access::replace}) {
    const std::uint64_t room = access == Access::replace ? 3 << 20 : 0;
    Store store = context.open(path, {.access = access, .size_bytes = room}).value();
    if (!store.info().direct) GTEST_SKIP() << "no direct I/O here";
    context.reset_statistics();
    for (const auto& [at, size] : {std::pair<std::size_t, std::size_t>{0, page}, {5 * page + 10, 100}, {7, 2 << 20}}) {
      const Report report = context.write(store, at, region(std::span(memory).first(size)), {.durable = at == 7});
      ASSERT_TRUE(report.ok()) << message_of(report);
      EXPECT_EQ(bytes_by(report, Route::buffered), size) << report.reason;
      EXPECT_EQ(report.cpu_seconds, size < (1 << 20) ? 0 : report.seconds) << "by the caller";
    }
    EXPECT_EQ(context.statistics().requests, 3U);
    ASSERT_TRUE(store.commit());
    const auto written = read_file(path);
    EXPECT_TRUE(same_bytes(std::span<const std::byte>(written).subspan(7, 2 << 20), bytes));
  }
}

TEST_F(CallersTransfers, repair_what_failed_in_a_file_that_replaces_another) {
  const std::string path = make_file("file");
  Context context = make_context();
  Store store = context.open(path, {.access = Access::replace, .size_bytes = 2 * page}).value();
  const Range unmapped{&store, 0, Region::host(nullptr, page)};
  EXPECT_FALSE(context.transfer(Direction::write, {&unmapped, 1}).ok());
  EXPECT_FALSE(store.commit()) << "a write was refused";
  EXPECT_TRUE(context.write(store, 0, region(std::span(memory_).first(2 * page))).ok());
  EXPECT_TRUE(store.commit());
  Store aborted = context.open(path, {.access = Access::replace, .size_bytes = page}).value();
  ASSERT_TRUE(aborted.abort());
  EXPECT_FALSE(context.write(aborted, 0, region(std::span(memory_).first(page))).ok());
}

TEST_F(CallersTransfers, write_blocks_past_the_page_cache_and_parts_of_blocks_through_it) {
  const CacheLimit limit(1);
  const std::string path = make_file("file");
  Context context = make_context();
  const Store store = context.open(path, {.access = Access::write}).value();
  if (!store.info().direct) GTEST_SKIP() << "no direct I/O here";
  const auto bytes = content(5, 0, 2 * page);
  std::copy(bytes.begin(), bytes.end(), memory_.begin());
  const auto write = [&](std::uint64_t offset, std::size_t size, bool durable = false) {
    const Report report = context.write(store, offset, region(std::span(memory_).first(size)), {.durable = durable});
    EXPECT_TRUE(report.ok()) << message_of(report);
    EXPECT_EQ(report.bytes, size);
    return report;
  };
  EXPECT_EQ(bytes_by(write(page, 2 * page), Route::direct), 2 * page);
  EXPECT_EQ(bytes_by(write(5 * page + 10, 100), Route::buffered), 100U);
  EXPECT_EQ(bytes_by(write(6 * page, page, true), Route::direct), page);
  EXPECT_EQ(bytes_by(write(8 * page + 4000, 200), Route::buffered), 200U) << "of two blocks: a request does it";
  EXPECT_EQ(bytes_by(write(size_bytes, page), Route::direct), page) << "makes it longer";
  auto expected = content(1, 0, size_bytes);
  expected.resize(size_bytes + page);
  for (const auto& [at, size] : {std::pair<std::size_t, std::size_t>{page, 2 * page},
                                 {5 * page + 10, 100},
                                 {6 * page, page},
                                 {8 * page + 4000, 200},
                                 {size_bytes, page}}) {
    std::copy_n(bytes.begin(), size, expected.begin() + static_cast<std::ptrdiff_t>(at));
  }
  EXPECT_TRUE(same_bytes(read_file(path), expected));
  EXPECT_EQ(context.statistics().requests, 5U);
}

TEST_F(CallersTransfers, leave_to_requests_what_has_to_be_told) {
  const std::string path = make_file("file");
  Context context = make_context();
  const Store store = context.open(path).value();
  warm(path);
  std::atomic<int> told = 0;
  RequestOptions options;
  options.on_range = [&](std::uint64_t, Code) { ++told; };
  EXPECT_TRUE(context.read(store, 0, region(std::span(memory_).first(page)), options).ok());
  EXPECT_EQ(told, 1);
  const Report past_end = context.read(store, size_bytes, region(std::span(memory_).first(page)));
  ASSERT_FALSE(past_end.ok());
  EXPECT_EQ(past_end.error->code, Code::out_of_range);
  Buffer buffer = context.allocate(Domain::host(), 2 * page).value();
  const Region overlapping = Region::host(buffer.region().data + page, 2 * page);
  const Report refused = context.read(store, 0, overlapping);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error->code, Code::out_of_range);
}

}  // namespace
}  // namespace penstock::test
