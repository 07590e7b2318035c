// The page cache of device::Array, used by threads of the CPU in place of warps: under a scheduler that explores
// interleavings, and by as many threads as there are.
#include "penstock/page_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "nvme/interleavings_test_support.h"
#include "support/paged_array_platform.h"

namespace penstock::test {
namespace {

using device::Frame;
using device::IoResult;
using device::IoStatus;
using device::PageCache;
using device::PageCacheState;
using device::PageCounts;
using device::PageWord;
using device::TakenPage;
using nvme::interleavings::Explorer;
using nvme::interleavings::Group;
using nvme::interleavings::never;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int cache_departures = 1;
#else
constexpr int cache_departures = 2;
#endif

struct CacheSize {
  std::uint32_t pages = 0;
  std::uint32_t frames = 0;
  std::uint32_t page_shift = 0;
};

// A cache in memory of the host, empty.
struct HostCache {
  explicit HostCache(const CacheSize& size)
      : words(size.pages), frames(size.frames), memory(std::size_t{size.frames} << size.page_shift) {
    state.page_shift = size.page_shift;
    state.frame_count = size.frames;
    state.words = words.data();
    state.frames = frames.data();
    state.memory = memory.data();
    state.counts = stripes.data();
  }

  // What can't be when nobody is inside.
  std::string fault() const {
    std::vector<bool> used(frames.size());
    for (std::size_t page = 0; page < words.size(); ++page) {
      const PageWord word{words[page]};
      if (word.holders() != 0) return "a page that is held for ever";
      if (word.state() == PageWord::being_fetched) return "a page that is fetched for ever";
      if (word.state() == PageWord::absent) continue;
      if (word.frame() >= frames.size() || used[word.frame()]) return "two pages in one frame";
      used[word.frame()] = true;
      if (frames[word.frame()].page != page) return "a frame of another page";
      if (memory[std::size_t{word.frame()} << state.page_shift] != page) return "bytes of another page";
    }
    for (std::size_t frame = 0; frame < frames.size(); ++frame) {
      if (frames[frame].page != Frame::nobody && !used[frame]) return "a frame that is lost";
    }
    return "";
  }

  std::vector<std::uint64_t> words;
  std::vector<Frame> frames;
  std::vector<unsigned char> memory;
  std::vector<PageCounts> stripes{PageCacheState::count_stripes};
  PageCounts& counts = stripes[0];  // the one that tests use
  PageCacheState state;
};

class CachePlatform : public nvme::interleavings::SchedulePlatform {
 public:
  using SchedulePlatform::SchedulePlatform;
  std::uint64_t add_acquire(std::uint64_t& word, std::uint64_t value) { return fetch_add(word, value); }
  static void add(std::uint64_t& word, std::uint64_t value) { word += value; }
  void add_release(std::uint64_t& word, std::uint64_t value) { fetch_add(word, value); }
  static std::uint32_t stripe() { return 0; }
};

// What the lanes of one group do, one after the other: each takes its page, looks twice, and gives it back.
using Visits = std::vector<std::vector<std::uint32_t>>;  // by round, the page of each lane

struct CacheRun {
  CacheSize size;
  std::vector<Visits> groups;
  bool may_fail = false;            // at the price of a departure
  bool looks_after_giving = false;  // a mistake that must be found
};

class CacheExploration {
 public:
  explicit CacheExploration(const CacheRun& run) : run_(run) {}

  Explorer::Outcome explore(const Explorer::Limits& limits) {
    return explorer_.explore(limits, [this] { return begin(); }, [this] { end(); });
  }

 private:
  std::vector<std::function<void()>> begin() {
    cache_ = std::make_unique<HostCache>(run_.size);
    taken_ = failed_ = 0;
    groups_ = std::vector<Group>(run_.groups.size());
    std::vector<std::function<void()>> bodies;
    for (std::size_t i = 0; i < run_.groups.size(); ++i) {
      groups_[i].size = static_cast<std::uint32_t>(run_.groups[i][0].size());
      for (std::uint32_t rank = 0; rank < groups_[i].size; ++rank) {
        bodies.emplace_back([this, i, rank] { visit(run_.groups[i], groups_[i], rank); });
      }
    }
    return bodies;
  }
  void visit(const Visits& visits, Group& group, std::uint32_t rank) {
    CachePlatform platform(explorer_, group, rank, {});
    PageCache<CachePlatform> cache(cache_->state, platform);
    for (const auto& pages : visits) {
      const std::uint32_t page = pages[rank];
      TakenPage taken = cache.take(page, true);
      const bool is_missing = taken.bytes == nullptr;
      if (platform.any(is_missing)) {
        const TakenPage late = cache.take_missing(
            page, is_missing, never,
            [&](std::uint32_t number, unsigned char* to, bool wants) { return fetch(platform, number, to, wants); });
        if (is_missing) taken = late;
      }
      ++taken_;
      if (!taken.result.ok()) ++failed_;
      if (run_.looks_after_giving) cache.give_back(page, taken.bytes != nullptr);
      look(taken, page);
      explorer_.point();
      look(taken, page);
      platform.sync();
      if (!run_.looks_after_giving) cache.give_back(page, taken.bytes != nullptr);
    }
  }
  IoResult fetch(CachePlatform& platform, std::uint32_t page, unsigned char* to, bool wants) {
    IoResult result;
    if (wants) {
      *to = 0xff;
      explorer_.point();
      if (run_.may_fail && explorer_.choose(2) != 0) result.status = IoStatus::failed;
      if (result.ok()) *to = static_cast<unsigned char>(page);
    }
    platform.sync();
    return result;
  }
  void look(const TakenPage& taken, std::uint32_t page) {
    if (taken.bytes != nullptr && *taken.bytes != page) explorer_.fail("bytes of another page");
  }
  void end() {
    explorer_.note(cache_->fault());
    const PageCounts& counts = cache_->counts;
    if (counts.hits + counts.fetched + counts.joined + counts.passed + counts.failed != taken_) {
      explorer_.note("pages were counted otherwise");
    }
    if (counts.failed != failed_) explorer_.note("failures were counted otherwise");
  }

  const CacheRun run_;
  Explorer explorer_;
  std::unique_ptr<HostCache> cache_;
  std::vector<Group> groups_;
  std::uint64_t taken_ = 0;
  std::uint64_t failed_ = 0;
};

void expect_all_well(const CacheRun& run, const Explorer::Limits& limits) {
  const auto outcome = CacheExploration(run).explore(limits);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_TRUE(outcome.complete || limits.random_seed != 0) << outcome.schedules << " schedules";
}

constexpr Explorer::Limits all_schedules{.departures = cache_departures, .schedules = 400'000};

TEST(PageCache, with_one_frame_serves_two_threads_with_two_pages) {
  expect_all_well({.size = {2, 1}, .groups = {{{0}, {1}}, {{1}, {0}}}}, all_schedules);
}

TEST(PageCache, fetches_once_what_three_threads_want) {
  expect_all_well({.size = {1, 1}, .groups = {{{0}}, {{0}}, {{0}}}}, all_schedules);
}

TEST(PageCache, lets_two_groups_wait_for_pages_of_each_other) {
  expect_all_well({.size = {2, 2}, .groups = {{{0, 1}}, {{1, 0}}}}, all_schedules);
}

TEST(PageCache, serves_a_group_that_wants_more_pages_than_there_are_frames) {
  expect_all_well({.size = {3, 1}, .groups = {{{0, 1, 1}}, {{2}}}}, {.departures = 1, .schedules = 400'000});
}

TEST(PageCache, goes_on_after_reads_that_fail) {
  expect_all_well({.size = {2, 1}, .groups = {{{0}, {1}}, {{0}, {0}}}, .may_fail = true}, all_schedules);
}

TEST(PageCache, is_right_under_schedules_drawn_at_random) {
  const CacheRun run{.size = {4, 2},
                     .groups = {{{0, 1}, {2, 3}, {1, 1}}, {{3}, {0}, {2}, {1}}, {{2}, {2}, {0}, {3}}},
                     .may_fail = true};
  expect_all_well(run, {.schedules = cache_departures == 1 ? 20U : 1000U, .random_seed = 7});
}

// The checks can fail.
TEST(PageCache, finds_a_holder_that_looks_after_giving_back) {
  const CacheRun run{.size = {2, 1}, .groups = {{{0}}, {{1}}}, .looks_after_giving = true};
  EXPECT_EQ(CacheExploration(run).explore({.departures = 2}).failure, "bytes of another page");
}

TEST(PageCache, ends_a_wait_for_a_fetch_that_does_not_end) {
  HostCache cache({.pages = 1, .frames = 1});
  cache.words[0] = PageWord::in_state(PageWord::being_fetched);
  ArrayThreadPlatform platform;
  PageCache<ArrayThreadPlatform> pages(cache.state, platform);
  ASSERT_EQ(pages.take(0, true).bytes, nullptr);
  const auto fetch = [](std::uint32_t, unsigned char*, bool) { return IoResult{}; };
  const TakenPage taken = pages.take_missing(0, true, platform.now() + 1'000'000, fetch);
  EXPECT_EQ(taken.result.status, IoStatus::timed_out);
  EXPECT_EQ(taken.bytes, nullptr);
  EXPECT_EQ(PageWord{cache.words[0]}.holders(), 0U);
}

TEST(PageCache, keeps_what_is_used_and_gives_up_what_is_not) {
  HostCache cache({.pages = 64, .frames = 8});
  ArrayThreadPlatform platform;
  PageCache<ArrayThreadPlatform> pages(cache.state, platform);
  const auto fetch = [](std::uint32_t page, unsigned char* to, bool) {
    *to = static_cast<unsigned char>(page);
    return IoResult{};
  };
  const auto touch = [&](std::uint32_t page) {
    TakenPage taken = pages.take(page, true);
    if (taken.bytes == nullptr) taken = pages.take_missing(page, true, never, fetch);
    ASSERT_NE(taken.bytes, nullptr);
    pages.give_back(page, true);
  };
  touch(0);
  for (std::uint32_t page = 1; page < 64; ++page) {
    touch(page);
    touch(0);
  }
  EXPECT_EQ(PageWord{cache.words[0]}.state(), PageWord::resident);
  EXPECT_GE(cache.counts.hits, 61U) << "of 63: the hand may come round before a page is used again";
  EXPECT_EQ(cache.fault(), "");
}

// Frames that nobody gives back cost room, and nothing else.
TEST(PageCache, is_passed_where_every_frame_is_held) {
  HostCache cache({.pages = 4, .frames = 2});
  ArrayThreadPlatform platform;
  PageCache<ArrayThreadPlatform> pages(cache.state, platform);
  const auto fetch = [](std::uint32_t page, unsigned char* to, bool) {
    *to = static_cast<unsigned char>(page);
    return IoResult{};
  };
  for (std::uint32_t page = 0; page < 4; ++page) {
    ASSERT_EQ(pages.take(page, true).bytes, nullptr);
    const TakenPage taken = pages.take_missing(page, true, never, fetch);
    EXPECT_TRUE(taken.result.ok());
    EXPECT_EQ(taken.bytes != nullptr, page < 2);
  }
  EXPECT_EQ(cache.counts.passed, 2U);
}

TEST(PageCache, serves_more_threads_than_it_has_frames) {
  constexpr std::uint32_t page_bytes = 64;
  for (const std::uint32_t frames : {1U, 3U, 16U}) {
    HostCache cache({.pages = 48, .frames = frames, .page_shift = 6});
    std::atomic<std::uint64_t> wrong = 0;
    const auto fetch = [](std::uint32_t page, unsigned char* to, bool) {
      std::memset(to, static_cast<int>(page), page_bytes);
      std::this_thread::yield();
      return page % 7 == 6 ? IoResult{IoStatus::failed} : IoResult{};
    };
    std::vector<std::jthread> threads;
    for (std::uint32_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        std::mt19937 random(thread + 1);
        for (int i = 0; i < 250; ++i) {
          const auto page = static_cast<std::uint32_t>(random() % 48);
          ArrayThreadPlatform platform;
          PageCache<ArrayThreadPlatform> pages(cache.state, platform);
          TakenPage taken = pages.take(page, true);
          if (taken.bytes == nullptr) taken = pages.take_missing(page, true, never, fetch);
          if (taken.bytes == nullptr) continue;
          for (std::uint32_t at = 0; at < page_bytes; ++at) wrong += taken.bytes[at] != page ? 1 : 0;
          pages.give_back(page, true);
        }
      });
    }
    threads.clear();
    // Alone: with few frames, threads may have read all of those past the cache.
    ArrayThreadPlatform platform;
    PageCache<ArrayThreadPlatform> pages(cache.state, platform);
    EXPECT_EQ(pages.take(6, true).bytes, nullptr);
    EXPECT_EQ(pages.take_missing(6, true, never, fetch).bytes, nullptr);
    EXPECT_EQ(wrong, 0U);
    EXPECT_EQ(cache.fault(), "");
    EXPECT_GT(cache.counts.failed, 0U) << "every seventh page can't be read";
    EXPECT_EQ(
        cache.counts.hits + cache.counts.fetched + cache.counts.joined + cache.counts.passed + cache.counts.failed,
        1001U);
  }
}

}  // namespace
}  // namespace penstock::test
