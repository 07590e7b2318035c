// What every engine that serves files must do with those that grow, shrink, are replaced, or sit in the page cache.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "conformance/every_engine.h"
#include "support/cache_limit.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

INSTANTIATE_TEST_SUITE_P(Engines, EveryFileEngine, testing::ValuesIn(file_engine_cases()),
                         testing::PrintToStringParamName());

TEST_P(EveryFileEngine, reads_what_it_wrote_into_a_new_file) {
  Context context = make_context();
  const std::size_t size = (5 << 20) + 123;
  auto bytes = content(7, 0, size);
  Store store = context.open(folder_.path("new"), {.access = Access::create}).value();
  const Report written = context.write(store, 0, Region::host(bytes.data(), size), {.durable = true});
  ASSERT_TRUE(written.ok()) << written.error->message;
  EXPECT_EQ(written.bytes, size);
  EXPECT_TRUE(holds_content(read_file(folder_.path("new")), 7, 0));

  GuardedMemory memory(size);
  const Report read = context.read(store, 0, memory.region());
  ASSERT_TRUE(read.ok()) << read.error->message;
  EXPECT_TRUE(holds_content(memory.bytes(), 7, 0));
}

TEST_P(EveryFileEngine, reads_what_was_appended_after_opening) {
  Context context = make_context();
  const std::string path = make_file("file", 1000);
  Store store = context.open(path).value();
  std::ofstream(path, std::ios::app) << "more";
  std::vector<std::byte> memory(4);
  ASSERT_TRUE(context.read(store, 1000, Region::host(memory.data(), 4)).ok());
  EXPECT_EQ(memory[0], std::byte{'m'});
}

TEST_P(EveryFileEngine, tells_when_the_file_changes_during_a_read) {
  Context context = make_context(small_lanes());
  const std::string path = make_file("file", 8 << 20);
  Store store = context.open(path).value();
  std::vector<std::byte> memory(8 << 20);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    while (!stop) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file << "changed";
      file.close();
      std::this_thread::sleep_for(1ms);
    }
  });
  bool noticed = false;
  for (int i = 0; i < 200 && !noticed; ++i) {
    const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
    if (!report.ok()) {
      EXPECT_EQ(report.error->code, Code::changed) << report.error->message;
      noticed = true;
    }
  }
  stop = true;
  writer.join();
  EXPECT_TRUE(noticed);
}

TEST_P(EveryFileEngine, tells_when_the_file_was_replaced) {
  Context context = make_context();
  const std::string path = make_file("file", 2 << 20);
  Store store = context.open(path).value();
  std::filesystem::rename(make_file("other", 2 << 20), path);
  std::vector<std::byte> memory(2 << 20);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::changed) << report.error->message;
}

TEST_P(EveryFileEngine, tells_when_the_file_was_truncated) {
  Context context = make_context();
  const std::string path = make_file("file", 100'000);
  Store store = context.open(path).value();
  std::filesystem::resize_file(path, 50'000);
  std::vector<std::byte> memory(100'000);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(report.ok());
  EXPECT_TRUE(report.error->code == Code::truncated || report.error->code == Code::out_of_range)
      << report.error->message;
}

TEST_P(EveryFileEngine, replaces_a_file_only_when_committed) {
  Context context = make_context();
  const std::string path = make_file("file", 100);
  auto bytes = content(9, 0, 5000);
  {
    Store store = context.open(path, {.access = Access::replace}).value();
    ASSERT_TRUE(context.write(store, 0, Region::host(bytes.data(), bytes.size())).ok());
    EXPECT_TRUE(holds_content(read_file(path), 1, 0)) << "the old content stays until commit";
  }
  EXPECT_TRUE(holds_content(read_file(path), 1, 0)) << "nothing was committed";
  Store store = context.open(path, {.access = Access::replace}).value();
  ASSERT_TRUE(context.write(store, 0, Region::host(bytes.data(), bytes.size())).ok());
  ASSERT_TRUE(store.commit().ok());
  EXPECT_TRUE(holds_content(read_file(path), 9, 0));
  EXPECT_EQ(read_file(path).size(), 5000U);
}

TEST_P(EveryFileEngine, does_not_replace_a_file_by_one_of_which_a_write_was_refused) {
  Context context = make_context();
  const std::string path = make_file("file", 100);
  const Store other = context.open(make_file("other", 1000)).value();
  Store store = context.open(path, {.access = Access::replace}).value();
  auto bytes = content(9, 0, 1000);
  const Region good = Region::host(bytes.data(), bytes.size());
  const auto refuses = [&](const std::vector<Range>& ranges) {
    EXPECT_FALSE(context.transfer(Direction::write, ranges).ok());
    const Status status = store.commit();
    return !status && status.error().code == Code::invalid_argument;
  };
  EXPECT_TRUE(refuses({{&store, 0, Region::host(nullptr, 1000)}})) << "no memory";
  EXPECT_TRUE(context.write(store, 0, good).ok());
  EXPECT_TRUE(refuses({{&store, 0, good}, {&other, 0, good}})) << "the other can't be written to";
  EXPECT_TRUE(context.write(store, 0, good.part(0, 400)).ok());
  EXPECT_TRUE(refuses({{&store, 500, {bytes.data(), 100, Domain::cuda(7)}}})) << "there is no such GPU";
  EXPECT_TRUE(holds_content(read_file(path), 1, 0)) << "the old content stays";
  EXPECT_TRUE(context.write(store, 400, good.part(400, 150)).ok());
  EXPECT_FALSE(store.commit().ok());
  EXPECT_TRUE(context.write(store, 550, good.part(550, 450)).ok()) << "the rest of what was refused";
  ASSERT_TRUE(store.commit().ok());
  EXPECT_TRUE(holds_content(read_file(path), 9, 0));
}

TEST_P(EveryFileEngine, does_not_replace_a_file_by_one_of_which_a_write_failed) {
  Context context = make_context();
  const std::string path = make_file("file", 100);
  auto bytes = content(9, 0, 5000);
  Store store = context.open(path, {.access = Access::replace}).value();
  ASSERT_TRUE(context.write(store, 0, Region::host(bytes.data(), bytes.size())).ok());
  RequestOptions late;
  late.deadline_seconds = -1;
  const Range part{&store, 1000, Region::host(bytes.data() + 1000, 2000)};
  ASSERT_FALSE(context.transfer(Direction::write, {&part, 1}, late).ok());
  const Status refused = store.commit();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::invalid_argument) << refused.error().message;
  EXPECT_TRUE(holds_content(read_file(path), 1, 0)) << "the old content stays";

  const std::array<Range, 2> around{Range{&store, 0, Region::host(bytes.data(), 1000)},
                                    Range{&store, 3000, Region::host(bytes.data() + 3000, 2000)}};
  ASSERT_TRUE(context.transfer(Direction::write, around).ok());
  EXPECT_FALSE(store.commit().ok()) << "all but that was written again";
  ASSERT_TRUE(context.transfer(Direction::write, {&part, 1}).ok()) << "repeated";
  ASSERT_TRUE(store.commit().ok());
  EXPECT_TRUE(holds_content(read_file(path), 9, 0));
}

TEST_P(EveryFileEngine, writes_no_more_to_a_file_that_was_aborted_and_in_place_to_one_that_was_committed) {
  Context context = make_context();
  const std::string path = make_file("file", 100);
  auto bytes = content(9, 0, 5000);
  for (const bool commits : {false, true}) {
    Store store = context.open(path, {.access = Access::replace}).value();
    ASSERT_TRUE(context.write(store, 0, Region::host(bytes.data(), 100)).ok());
    ASSERT_TRUE((commits ? store.commit() : store.abort()).ok());
    const Report report = context.write(store, 0, Region::host(bytes.data(), bytes.size()));
    EXPECT_EQ(report.ok(), commits);
    if (commits) continue;
    EXPECT_EQ(report.error->code, Code::invalid_argument) << report.error->message;
    EXPECT_NE(report.error->hint.find("open it again"), std::string::npos);
    EXPECT_TRUE(holds_content(read_file(path), 1, 0));
  }
  EXPECT_TRUE(holds_content(read_file(path), 9, 0));
  EXPECT_EQ(read_file(path).size(), 5000U);
}

TEST_P(EveryFileEngine, leaves_files_that_fit_in_the_page_cache_and_others_where_it_is_asked_to) {
  const std::string path = make_file("file", 4 << 20);
  const auto second_read = [&](std::uint64_t limit_bytes, Cache cache) {
    const CacheLimit limit(limit_bytes);
    Options options = small_lanes();
    options.cache = cache;
    Context context = make_context(options);
    evict(path);
    Store store = context.open(path).value();
    std::vector<std::byte> memory(4 << 20);
    Report first = context.read(store, 0, Region::host(memory.data(), memory.size()));
    EXPECT_TRUE(first.ok());
    EXPECT_TRUE(holds_content(memory, 1, 0));
    const bool fits = limit_bytes >= memory.size();
    if (store.info().direct && cache == Cache::automatic) {
      EXPECT_EQ(first.routes[static_cast<std::size_t>(fits ? Route::buffered : Route::direct)], memory.size())
          << first.reason;
      EXPECT_NE(first.reason.find(fits ? "the file fits" : "does not fit"), std::string::npos) << first.reason;
    }
    return store.cached_bytes(0, memory.size()).value_or(memory.size());
  };
  Context context = make_context(small_lanes());
  if (!context.open(path).value().info().direct) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  EXPECT_EQ(second_read(4 << 20, Cache::automatic), 4U << 20);
  EXPECT_EQ(second_read((4 << 20) - 1, Cache::automatic), 0U);
  EXPECT_EQ(second_read(1, Cache::keep), 4U << 20);
  EXPECT_EQ(second_read(UINT64_MAX / 2, Cache::bypass), 0U);
}

TEST_P(EveryFileEngine, keeps_what_is_written_if_the_file_fits) {
  const std::size_t size = (5 << 20) + 123;
  auto bytes = content(7, 0, size);
  Context any = make_context(small_lanes());
  if (!any.open(make_file("any", 4096)).value().info().direct) {
    GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  }
  const auto write = [&](const OpenOptions& how, std::uint64_t limit_bytes, Cache cache, bool durable) {
    const CacheLimit limit(limit_bytes);
    Options options = small_lanes();
    options.cache = cache;
    Context context = make_context(options);
    std::filesystem::remove(folder_.path("file"));
    if (how.access == Access::write) {
      make_file("file", size);
      evict(folder_.path("file"));
    }
    Store store = context.open(folder_.path("file"), how).value();
    Report report = context.write(store, 0, Region::host(bytes.data(), size), {.durable = durable});
    EXPECT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(store.commit(durable));
    return report;
  };
  const auto next_read = [&] {
    Context context = make_context(small_lanes());
    Store store = context.open(folder_.path("file")).value();
    std::vector<std::byte> memory(size);
    const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
    EXPECT_TRUE(holds_content(memory, 7, 0));
    return report;
  };
  const OpenOptions ways[] = {{.access = Access::write},
                              {.access = Access::create},
                              {.access = Access::replace},
                              {.access = Access::replace, .size_bytes = size},
                              {.access = Access::replace, .size_bytes = size, .reserve_from = size}};
  for (const OpenOptions& how : ways) {
    for (const bool durable : {false, true}) {
      const Report fits = write(how, size, Cache::automatic, durable);
      EXPECT_EQ(fits.routes[static_cast<std::size_t>(Route::buffered)], size) << fits.reason;
      EXPECT_NE(fits.reason.find("the file fits"), std::string::npos) << fits.reason;
      const Report cached = next_read();
      EXPECT_EQ(cached.routes[static_cast<std::size_t>(Route::cached)], size) << cached.reason;
    }
    const Report too_long = write(how, size - 1, Cache::automatic, false);
    EXPECT_GE(too_long.routes[static_cast<std::size_t>(Route::direct)], size - 4096) << too_long.reason;
    EXPECT_NE(too_long.reason.find("does not fit"), std::string::npos) << too_long.reason;
    const Report past = write(how, UINT64_MAX / 2, Cache::bypass, true);
    EXPECT_GE(past.routes[static_cast<std::size_t>(Route::direct)], size - 4096) << past.reason;
    EXPECT_NE(past.reason.find("cache=bypass"), std::string::npos) << past.reason;
    EXPECT_LT(next_read().routes[static_cast<std::size_t>(Route::cached)], size / 2);
  }
}

TEST_P(EveryFileEngine, leaves_nothing_to_be_written_back_after_a_durable_write) {
  struct Cachestat {
    std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
  };
  constexpr long cachestat_call = 451;
  const auto unwritten = [&](const std::string& path) -> std::optional<std::uint64_t> {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const std::uint64_t whole[2] = {0, 0};
    Cachestat state{};
    const bool known = ::syscall(cachestat_call, fd, whole, &state, 0) == 0;
    ::close(fd);
    return known ? std::optional(state.dirty + state.writeback) : std::nullopt;
  };
  // The first by its caller, the second by lanes, the third written back while it is written.
  for (const std::size_t size : {std::size_t{100'000}, std::size_t{10} << 20, std::size_t{40} << 20}) {
    Context context = make_context(small_lanes());
    const auto bytes = content(3, 0, size);
    std::vector<std::byte> memory(bytes.begin(), bytes.end());
    const std::string path = make_file("file", size);
    Store store = context.open(path, {.access = Access::write}).value();
    const Report report = context.write(store, 0, Region::host(memory.data(), size), {.durable = true});
    ASSERT_TRUE(report.ok()) << report.error->message;
    const auto left = unwritten(path);
    if (!left) GTEST_SKIP() << "the kernel has no cachestat";
    EXPECT_EQ(*left, 0U) << size;
    EXPECT_TRUE(same_bytes(read_file(path), bytes)) << size;
    evict(path);
    EXPECT_TRUE(same_bytes(read_file(path), bytes)) << size << ", on the disk";
  }
}

// Neighbours share pages, and files that were read before are cached in larger units than pages.
TEST_P(EveryFileEngine, writes_through_and_past_the_page_cache_beside_each_other) {
  constexpr std::size_t size = 8 << 20;
  constexpr std::size_t threads = 4;
  const std::string path = make_file("file", size);
  Context context = make_context(small_lanes());
  Store store = context.open(path, {.access = Access::write}).value();
  const auto bytes = content(9, 0, size);
  for (int round = 0; round < 4; ++round) {
    warm(path);
    std::vector<std::thread> writers;
    for (std::size_t thread = 0; thread < threads; ++thread) {
      writers.emplace_back([&, thread] {
        std::vector<std::byte> memory;
        std::size_t at = 0;
        for (std::size_t i = 0; at < size; ++i) {
          const std::size_t length = std::min<std::size_t>(size - at, 1 + i * 7919 % 100'000);
          if (i % threads == thread) {
            const auto piece = std::span(bytes).subspan(at, length);
            memory.assign(piece.begin(), piece.end());
            const RequestOptions options{.cache = i % 3 == 0 ? Cache::automatic : Cache::bypass};
            EXPECT_TRUE(context.write(store, at, Region::host(memory.data(), length), options).ok());
          }
          at += length;
        }
      });
    }
    for (std::thread& writer : writers) writer.join();
    EXPECT_TRUE(same_bytes(read_file(path), bytes)) << "in the page cache";
    ASSERT_TRUE(store.commit());
    evict(path);
    EXPECT_TRUE(same_bytes(read_file(path), bytes)) << "on the disk";
  }
}

TEST_P(EveryFileEngine, keeps_what_is_read_a_second_time_of_a_file_that_does_not_fit) {
  const std::size_t size = 8 << 20;
  const std::string path = make_file("file", size);
  const CacheLimit limit(4 << 20);
  Context context = make_context(small_lanes());
  evict(path);
  Store store = context.open(path).value();
  if (!store.info().direct) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  constexpr std::size_t length = 16 << 10;
  const auto read = [&](std::uint64_t offset) {
    alignas(4096) static std::array<std::byte, length> memory;
    const Report report = context.read(store, offset, Region::host(memory.data(), memory.size()));
    EXPECT_TRUE(report.ok());
    EXPECT_TRUE(holds_content(memory, 1, offset));
    for (const Route route : {Route::direct, Route::buffered, Route::cached}) {
      if (report.routes[static_cast<std::size_t>(route)] == length) return route;
    }
    return Route::mapped;
  };
  EXPECT_EQ(read(1 << 20), Route::direct);
  EXPECT_EQ(read(1 << 20), Route::buffered);
  EXPECT_EQ(read(1 << 20), Route::cached);
  // A scan that is longer than the limit leaves nothing, however often it is repeated.
  evict(path);
  std::vector<std::byte> memory(size);
  for (int pass = 0; pass < 3; ++pass) {
    const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
    EXPECT_TRUE(holds_content(memory, 1, 0));
    EXPECT_GE(report.routes[static_cast<std::size_t>(Route::direct)], size / 2) << report.reason;
  }
  EXPECT_LE(store.cached_bytes(0, size).value_or(0), size / 2);
}

TEST_P(EveryFileEngine, keeps_short_ranges_of_a_request_that_are_read_a_second_time) {
  const std::size_t size = 8 << 20;
  const std::string path = make_file("file", size);
  const CacheLimit limit(4 << 20);
  Context context = make_context(small_lanes());
  evict(path);
  Store store = context.open(path).value();
  if (!store.info().direct) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  constexpr std::size_t row = 4096;
  std::vector<std::byte> memory(100 * row);
  const auto read = [&](std::uint64_t first) {
    std::vector<Range> ranges;
    for (std::uint64_t i = 0; i < 100; ++i) {
      ranges.push_back({&store, (first + i) * 3 * row, Region::host(memory.data() + i * row, row)});
    }
    const Report report = context.transfer(Direction::read, ranges);
    EXPECT_TRUE(report.ok());
    for (std::uint64_t i = 0; i < 100; ++i) {
      EXPECT_TRUE(holds_content(std::span(memory).subspan(i * row, row), 1, (first + i) * 3 * row));
    }
    return report.routes[static_cast<std::size_t>(Route::buffered)];
  };
  EXPECT_EQ(read(0), 0U);
  EXPECT_EQ(read(50), 50 * row) << "half of them were read before";
}

TEST_P(EveryFileEngine, leaves_nothing_behind_in_the_page_cache_of_what_does_not_fit_unless_asked_to) {
  const CacheLimit limit(1);
  const std::string path = make_file("file", 4 << 20);
  const auto route_of_second_read = [&](Cache cache, std::optional<Cache> of_request = std::nullopt) {
    Options options = small_lanes();
    options.cache = cache;
    Context context = make_context(options);
    evict(path);
    Store store = context.open(path).value();
    if (!store.info().direct) return std::optional<Route>();
    std::vector<std::byte> memory(4 << 20);
    RequestOptions request;
    request.cache = of_request;
    const Range all{&store, 0, Region::host(memory.data(), memory.size())};
    EXPECT_TRUE(context.transfer(Direction::read, {&all, 1}, request).ok());
    Context looking = make_context(small_lanes());
    const Report report = looking.read(looking.open(path).value(), 0, Region::host(memory.data(), memory.size()));
    for (std::size_t i = 0; i < route_count; ++i) {
      if (report.routes[i] == memory.size()) return std::optional(static_cast<Route>(i));
    }
    return std::optional<Route>();
  };
  const auto after_auto = route_of_second_read(Cache::automatic);
  if (!after_auto) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  EXPECT_EQ(*after_auto, Route::direct);
  EXPECT_EQ(route_of_second_read(Cache::keep), Route::cached);
  EXPECT_EQ(route_of_second_read(Cache::bypass), Route::direct);
  EXPECT_EQ(route_of_second_read(Cache::automatic, Cache::keep), Route::cached);
  EXPECT_EQ(route_of_second_read(Cache::keep, Cache::automatic), Route::direct);
}

TEST_P(EveryFileEngine, uses_cache_and_device_in_one_request_over_a_half_cached_file) {
  const CacheLimit limit(1);
  const std::size_t size = 16 << 20;
  const std::string path = make_file("file", size);
  Context context = make_context(small_lanes());
  Store store = context.open(path).value();
  if (!store.info().direct) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  Report report;
  // A kernel that is short of memory may evict pages at any time.
  for (int attempt = 0; attempt < 5; ++attempt) {
    evict(path);
    warm(path, size / 2);
    GuardedMemory memory(size);
    report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(holds_content(memory.bytes(), 1, 0));
    if (store.cached_bytes(0, size / 2).value_or(size / 2) == size / 2) break;
  }
  EXPECT_GE(report.routes[static_cast<std::size_t>(Route::cached)], size / 2);
  EXPECT_GE(report.routes[static_cast<std::size_t>(Route::direct)], size / 4);
}

TEST_P(EveryFileEngine, obeys_the_allowed_routes) {
  const std::string path = make_file("file", 1 << 20);
  warm(path);
  Options options;
  options.allowed_routes = {Route::buffered};
  Context context = make_context(options);
  Store store = context.open(path).value();
  std::vector<std::byte> memory(1 << 20);
  const Report report = context.read(store, 0, Region::host(memory.data(), memory.size()));
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report.routes[static_cast<std::size_t>(Route::buffered)], memory.size());
  options.allowed_routes = {Route::mapped};
  Context none = make_context(options);
  Store other = none.open(path).value();
  const Report refused = none.read(other, 0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error->code, Code::no_route);
}

TEST_P(EveryFileEngine, does_not_write_unaligned_ends_where_the_page_cache_is_not_allowed) {
  const std::string path = make_file("file", 1 << 20);
  Options options;
  options.allowed_routes = {Route::direct};
  Context context = make_context(options);
  Store store = context.open(path, {.access = Access::write}).value();
  if (!store.info().direct) GTEST_SKIP() << "the temporary folder's file system has no direct I/O";
  auto bytes = content(2, 0, 100'000);
  const Report whole = context.write(store, 0, Region::host(bytes.data(), 8192));
  EXPECT_TRUE(whole.ok()) << whole.error->message;
  const Report ragged = context.write(store, 0, Region::host(bytes.data(), bytes.size()));
  ASSERT_FALSE(ragged.ok());
  EXPECT_EQ(ragged.error->code, Code::no_route);
  ASSERT_EQ(ragged.failures.size(), 1U);
  EXPECT_EQ(ragged.failures[0].offset, 98'304U);
}

TEST_P(EveryFileEngine, serves_files_in_memory) {
  if (!std::filesystem::is_directory("/dev/shm") || ::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const TemporaryFolder memory_folder("/dev/shm");
  const std::size_t size = (3 << 20) + 17;
  write_file(memory_folder.path("file"), content(1, 0, size));
  Context context = make_context(small_lanes());
  Store store = context.open(memory_folder.path("file")).value();
  EXPECT_EQ(store.info().locality, Locality::memory);
  GuardedMemory memory(size);
  ASSERT_TRUE(context.read(store, 0, memory.region()).ok());
  EXPECT_TRUE(holds_content(memory.bytes(), 1, 0));
  Store out = context.open(memory_folder.path("out"), {.access = Access::create}).value();
  ASSERT_TRUE(context.write(out, 0, memory.region(), {.durable = true}).ok());
  EXPECT_TRUE(holds_content(read_file(memory_folder.path("out")), 1, 0));
}

}  // namespace
}  // namespace penstock::test
