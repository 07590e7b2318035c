#include "base/turn_lock.h"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace penstock {
namespace {

TEST(TurnLock, is_refused_to_who_tries_while_another_has_it) {
  TurnLock lock;
  ASSERT_TRUE(lock.try_lock());
  std::thread([&] { EXPECT_FALSE(lock.try_lock()); }).join();
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST(TurnLock, is_held_by_one_at_a_time) {
  constexpr int rounds = 20'000;
  TurnLock lock;
  int count = 0;  // guarded by it
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, waits = i % 2 == 0] {
      for (int done = 0; done < rounds;) {
        std::unique_lock held(lock, std::defer_lock);
        if (waits) {
          held.lock();
        } else if (!held.try_lock()) {
          std::this_thread::yield();
          continue;
        }
        ++count;
        ++done;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(count, 4 * rounds);
}

TEST(TurnLock, wakes_all_who_wait_one_after_another) {
  TurnLock lock;
  int count = 0;  // guarded by it
  lock.lock();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const std::scoped_lock held(lock);
      ++count;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(count, 0);
  lock.unlock();
  threads.clear();
  EXPECT_EQ(count, 3);
}

}  // namespace
}  // namespace penstock
