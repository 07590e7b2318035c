#include "services/tiers/side_by_side.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <set>
#include <thread>

namespace penstock::tiers {
namespace {

TEST(SideBySide, every_number_has_its_turn_once) {
  for (const std::size_t count : {0U, 1U, 3U, 5U, 100U}) {
    std::array<std::atomic<int>, 100> turns{};
    side_by_side(count, [&](std::size_t i) { ++turns.at(i); });
    for (std::size_t i = 0; i < turns.size(); ++i) EXPECT_EQ(turns[i], i < count ? 1 : 0) << i << " of " << count;
  }
}

TEST(SideBySide, an_exception_comes_out_after_the_others_had_their_turn) {
  std::atomic<int> turns = 0;
  const auto work = [&](std::size_t i) {
    ++turns;
    if (i == 7) throw std::bad_alloc();
  };
  EXPECT_THROW(side_by_side(50, work), std::bad_alloc);
  EXPECT_EQ(turns, 50);
}

TEST(SideBySide, those_that_wait_wait_together) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  side_by_side(100, [&](std::size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::scoped_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_GT(threads.size(), 1U);
}

}  // namespace
}  // namespace penstock::tiers
