#include "core/block_locks.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace penstock::core {
namespace {

TEST(BlockLocks, give_a_block_to_one_at_a_time) {
  BlockLocks locks;
  std::array<BlockLocks::Block, 2> blocks{{{4096}, {8192}}};
  BlockLocks::Block first_again{4096};
  BlockLocks::Block second_again{8192};
  EXPECT_TRUE(locks.try_lock(blocks[0]));
  EXPECT_FALSE(locks.try_lock(first_again));
  EXPECT_TRUE(locks.try_lock(blocks[1])) << "other blocks are free";
  locks.unlock(blocks[0]);
  EXPECT_TRUE(locks.try_lock(first_again));
  EXPECT_FALSE(locks.try_lock(second_again));
  locks.unlock(first_again);
  locks.unlock(blocks[1]);
  EXPECT_TRUE(locks.try_lock(second_again));
}

TEST(BlockLocks, keep_threads_apart) {
  constexpr int rounds = 2000;
  BlockLocks locks;
  std::array<int, 3> counts{};  // not atomic: the locks guard them
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < rounds; ++i) {
        BlockLocks::Block block{static_cast<std::uint64_t>(t + i) % counts.size()};
        while (!locks.try_lock(block)) std::this_thread::yield();
        ++counts[block.number];
        locks.unlock(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 4 * rounds);
}

}  // namespace
}  // namespace penstock::core
