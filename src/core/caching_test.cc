#include "core/caching.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <thread>

#include "base/file_number.h"

namespace penstock::core {
namespace {

constexpr std::uint64_t mega = 1 << 20;

class CachingTest : public testing::Test {
 protected:
  Caching caching(std::uint64_t limit_bytes = 0) {
    return Caching(limit_bytes, [this] {
      ++asked_;
      return memory_;
    });
  }
  static std::unique_ptr<CachedFile> file(std::uint64_t number) {
    auto made = std::make_unique<CachedFile>();
    made->number = number;
    return made;
  }
  bool fits(Caching& caching, CachedFile& file, std::uint64_t size_bytes, std::uint64_t resident_bytes = 0) {
    clock_.turn_by(std::chrono::milliseconds(150));
    return caching.fits(file, size_bytes, Clock::now(), [=] { return resident_bytes; });
  }

  TurnedClock clock_;
  PageMemory memory_{.available_bytes = 100 * mega, .idle_bytes = 100 * mega};
  int asked_ = 0;
};

TEST_F(CachingTest, keeps_nothing_where_little_memory_is_available) {
  Caching caching = this->caching();
  memory_.available_bytes = 40 * mega - 1;
  EXPECT_FALSE(fits(caching, *file(1), mega));
  memory_.available_bytes = 40 * mega;
  EXPECT_TRUE(fits(caching, *file(1), mega));
}

TEST_F(CachingTest, keeps_a_file_of_up_to_half_of_the_available_memory) {
  Caching caching = this->caching();
  EXPECT_TRUE(fits(caching, *file(1), 50 * mega));
  EXPECT_FALSE(fits(caching, *file(2), 50 * mega + 1));
  memory_.available_bytes = 102 * mega;
  EXPECT_FALSE(fits(caching, *file(2), 50 * mega + 1)) << "the other takes most of it";
}

TEST_F(CachingTest, keeps_files_up_to_the_limit_together_until_they_are_not_read_any_more) {
  Caching caching = this->caching();
  const auto first = file(1);
  const auto second = file(2);
  const auto third = file(3);
  EXPECT_TRUE(fits(caching, *first, 20 * mega));
  EXPECT_TRUE(fits(caching, *second, 30 * mega));
  EXPECT_FALSE(fits(caching, *third, 10 * mega));
  EXPECT_TRUE(fits(caching, *first, 20 * mega)) << "it was there before";
  clock_.turn_by(std::chrono::minutes(9));
  EXPECT_TRUE(fits(caching, *first, 20 * mega));
  EXPECT_FALSE(fits(caching, *third, 10 * mega));
  clock_.turn_by(std::chrono::minutes(2));
  EXPECT_TRUE(fits(caching, *third, 10 * mega)) << "the second was not read for long";
}

TEST_F(CachingTest, knows_a_file_that_is_opened_again) {
  Caching caching = this->caching();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(fits(caching, *file(1), 40 * mega));
}

TEST_F(CachingTest, forgets_files_that_were_removed_or_replaced) {
  Caching caching = this->caching();
  const std::string path = testing::TempDir() + "caching_test_" + std::to_string(::getpid());
  const auto make = [&] {
    std::ofstream(path) << "x";
    struct stat status = {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    auto made = file(file_number(status));
    made->local_path = path;
    return made;
  };
  const auto first = make();
  EXPECT_TRUE(fits(caching, *first, 40 * mega));
  EXPECT_FALSE(fits(caching, *file(1), 20 * mega));
  std::remove(path.c_str());
  EXPECT_FALSE(fits(caching, *file(1), 20 * mega)) << "nobody looks again so soon";
  clock_.turn_by(std::chrono::seconds(2));
  EXPECT_TRUE(fits(caching, *file(1), 20 * mega));
  std::remove(path.c_str());
}

TEST_F(CachingTest, drives_out_no_pages_that_are_in_use) {
  Caching caching = this->caching();
  memory_.idle_bytes = 10 * mega;
  EXPECT_TRUE(fits(caching, *file(1), 10 * mega));
  EXPECT_FALSE(fits(caching, *file(2), 11 * mega));
  EXPECT_TRUE(fits(caching, *file(2), 11 * mega, mega)) << "some of it is there already";
}

TEST_F(CachingTest, takes_a_chosen_limit_at_its_word) {
  Caching caching = this->caching(30 * mega);
  memory_ = {};
  EXPECT_TRUE(fits(caching, *file(1), 30 * mega));
  EXPECT_FALSE(fits(caching, *file(2), 1));
  EXPECT_EQ(asked_, 0);
}

TEST_F(CachingTest, asks_rarely) {
  Caching caching = this->caching();
  const auto one = file(1);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(caching.fits(*one, mega, Clock::now(), [] { return 0; }));
  EXPECT_TRUE(caching.fits(*file(2), mega, Clock::now(), [] { return 0; }));
  EXPECT_EQ(asked_, 1);
  clock_.turn_by(std::chrono::milliseconds(101));
  EXPECT_TRUE(caching.fits(*one, mega, Clock::now(), [] { return 0; }));
  EXPECT_EQ(asked_, 2);
}

TEST_F(CachingTest, knows_what_was_read_not_long_ago) {
  Caching caching = this->caching(8 * mega);
  const auto one = file(1);
  const auto other = file(2);
  EXPECT_FALSE(fits(caching, *one, 9 * mega));
  EXPECT_FALSE(caching.was_read(*one, 8192, 4096));
  caching.note(*one, 8192, 4096);
  EXPECT_TRUE(caching.was_read(*one, 8192, 4096));
  EXPECT_TRUE(caching.was_read(*one, 9000, 100));
  EXPECT_FALSE(caching.was_read(*one, 8192, 8192)) << "half of it was not";
  EXPECT_FALSE(caching.was_read(*one, 4096, 4096));
  EXPECT_FALSE(caching.was_read(*other, 8192, 4096));
  caching.note(*one, 16 * mega, 2 * mega);
  EXPECT_TRUE(caching.was_read(*one, 16 * mega, 2 * mega));
}

TEST_F(CachingTest, forgets_what_would_have_left_the_page_cache) {
  Caching caching = this->caching(8 * mega);
  const auto one = file(1);
  EXPECT_FALSE(fits(caching, *one, 9 * mega));
  caching.note(*one, 0, 4096);
  for (std::uint64_t at = 1; at <= 8; ++at) caching.note(*one, at * mega, mega);
  EXPECT_TRUE(caching.was_read(*one, 0, 4096));
  for (std::uint64_t at = 9; at <= 10; ++at) caching.note(*one, at * mega, mega);
  EXPECT_FALSE(caching.was_read(*one, 0, 4096)) << "more than the limit was read since";
}

TEST_F(CachingTest, remembers_a_bounded_number_of_blocks) {
  Caching caching = this->caching(std::uint64_t{1} << 40);
  const auto one = file(1);
  EXPECT_FALSE(fits(caching, *one, std::uint64_t{2} << 40));
  constexpr std::uint64_t blocks = 1 << 20;
  for (std::uint64_t block = 0; block < blocks; ++block) caching.note(*one, block * 4096, 4096);
  std::uint64_t known = 0;
  for (std::uint64_t block = 0; block < blocks; ++block) known += caching.was_read(*one, block * 4096, 4096) ? 1 : 0;
  EXPECT_GT(known, blocks / 8);
  EXPECT_LE(known, blocks / 4);
}

TEST_F(CachingTest, can_be_used_by_many_threads) {
  Caching caching = this->caching(64 * mega);
  std::array<std::thread, 4> threads;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    threads[i] = std::thread([&, i] {
      const auto one = file(i / 2 + 1);
      for (std::uint64_t at = 0; at < 1000; ++at) {
        caching.fits(*one, (i + 1) * mega, Clock::now(), [] { return 0; });
        caching.note(*one, at * 4096, 4096);
        caching.was_read(*one, at * 4096, 4096);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t known = 0;
  for (std::uint64_t at = 0; at < 1000; ++at) known += caching.was_read(*file(1), at * 4096, 4096) ? 1 : 0;
  EXPECT_GT(known, 900U);
}

TEST(DiskRates, are_compared_after_a_while_and_the_better_way_is_taken) {
  for (const bool is_faster_past : {false, true}) {
    DiskRates rates;
    const TimePoint start = Clock::now();
    std::uint64_t read = 0;
    TimePoint now = start;
    std::uint64_t tried = 0;
    for (; read < 2 * DiskRates::first_bytes; read += mega) {
      const Stays way = rates.next(mega);
      const bool is_decided = read >= DiskRates::first_bytes + DiskRates::try_bytes;
      const Stays expected = is_decided && is_faster_past ? Stays::too_slow : Stays::file;
      const bool is_tried = read >= DiskRates::first_bytes && !is_decided;
      EXPECT_EQ(way, is_tried ? Stays::later : expected);
      const bool past = way == Stays::later || way == Stays::too_slow;
      tried += way == Stays::later ? mega : 0;
      const Duration took = std::chrono::microseconds(past ? (is_faster_past ? 99 : 100) : 200);
      now += took;
      rates.note(past ? engine::Path::direct : engine::Path::buffered, mega, took, now);
    }
    EXPECT_EQ(tried, DiskRates::try_bytes);
  }
}

TEST(DiskRates, are_compared_by_long_requests_too) {
  DiskRates rates;
  constexpr std::uint64_t request = DiskRates::believed_bytes / 4;
  TimePoint now = Clock::now();
  const auto next = [&] {
    const Stays way = rates.next(request);
    const bool past = way == Stays::later || way == Stays::too_slow;
    now += std::chrono::seconds(past ? 2 : 5);
    rates.note(past ? engine::Path::direct : engine::Path::buffered, request, std::chrono::seconds(past ? 2 : 5), now);
    return way;
  };
  for (int times = 0; times < 3; ++times) {
    EXPECT_EQ(next(), Stays::file);
    EXPECT_EQ(next(), Stays::later);
    EXPECT_EQ(next(), Stays::too_slow);
    EXPECT_EQ(next(), Stays::too_slow);
  }
}

TEST(CachedFile, counts_a_sync_as_time_of_the_path_that_most_bytes_went) {
  for (const engine::Path path : {engine::Path::direct, engine::Path::buffered}) {
    CachedFile file;
    file.rates = {std::make_shared<DiskRates>(), std::make_shared<DiskRates>()};
    DiskRates& rates = file.rates_of(Direction::write);
    TimePoint now = Clock::now();
    const auto write = [&](engine::Path by) {
      now += std::chrono::milliseconds(10);
      file.note(Direction::write, by, DiskRates::try_bytes, std::chrono::milliseconds(10), now);
    };
    write(engine::Path::buffered);
    write(engine::Path::direct);
    write(path);
    now += std::chrono::milliseconds(100);
    file.note_sync(std::chrono::milliseconds(100), now);
    now += std::chrono::milliseconds(100);
    file.note_sync(std::chrono::milliseconds(100), now);  // of nothing
    rates.next(DiskRates::first_bytes);
    rates.next(DiskRates::try_bytes);
    const Stays expected = path == engine::Path::buffered ? Stays::too_slow : Stays::file;
    EXPECT_EQ(rates.next(mega), expected);
  }
}

TEST(PageMemory, is_told_by_the_kernel_s_text) {
  const PageMemory memory = parse_meminfo(
      "MemTotal:       24683520 kB\nMemFree:         1000 kB\nMemAvailable:   3000 kB\nInactive:   900 kB\n"
      "Active(file):     700 kB\nInactive(file):   500 kB\n");
  EXPECT_EQ(memory.available_bytes, 3000U << 10);
  EXPECT_EQ(memory.idle_bytes, 1500U << 10);
  const PageMemory now = PageMemoryReader()();
  EXPECT_GT(now.available_bytes, 0U);
}

}  // namespace
}  // namespace penstock::core
