#include "core/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace penstock::core {
namespace {

constexpr std::size_t granule = StagingArena::granule_bytes;

StagingArena arena_of(std::size_t granules) {
  return StagingArena(memory::Allocation::create({.domain = Domain::host(), .size_bytes = granules * granule}).value());
}

TEST(StagingArena, gives_whole_granules_inside_its_memory) {
  StagingArena arena = arena_of(4);
  EXPECT_EQ(arena.largest_bytes(), 4 * granule);
  const auto block = arena.take(granule + 1);
  ASSERT_TRUE(block);
  EXPECT_EQ(block->count, 2U);
  EXPECT_GE(block->data, arena.region().data);
  EXPECT_LE(block->data + 2 * granule, arena.region().data + arena.region().size_bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->data) % 4096, 0U);
}

TEST(StagingArena, says_no_when_it_is_full_and_yes_again_later) {
  StagingArena arena = arena_of(3);
  const auto first = arena.take(2 * granule);
  ASSERT_TRUE(first);
  EXPECT_FALSE(arena.take(2 * granule));
  ASSERT_TRUE(arena.take(granule));
  EXPECT_FALSE(arena.take(1));
  arena.give_back(*first);
  const auto again = arena.take(2 * granule);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->data, first->data);
}

TEST(StagingArena, refuses_nothing_and_more_than_it_has) {
  StagingArena arena = arena_of(2);
  EXPECT_FALSE(arena.take(0));
  EXPECT_FALSE(arena.take(2 * granule + 1));
  EXPECT_TRUE(arena.take(2 * granule));
}

TEST(StagingArena, finds_room_wherever_the_last_search_ended) {
  StagingArena arena = arena_of(4);
  const auto first = arena.take(3 * granule);  // the next search begins at the last granule
  arena.give_back(*first);
  EXPECT_TRUE(arena.take(4 * granule)) << "a run before and across that point";
}

TEST(StagingArena, never_gives_the_same_granule_to_two) {
  constexpr std::size_t granules = 16;
  StagingArena arena = arena_of(granules);
  std::mt19937 random(1);
  std::vector<StagingArena::Block> held;
  std::vector<bool> used(granules);
  const auto longest_free_run = [&] {
    std::size_t longest = 0;
    std::size_t run = 0;
    for (const bool taken : used) longest = std::max(longest, run = taken ? 0 : run + 1);
    return longest;
  };
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 && !held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      const StagingArena::Block block = held.back();
      held.pop_back();
      std::fill_n(used.begin() + block.first, block.count, false);
      arena.give_back(block);
      continue;
    }
    const std::size_t wanted = 1 + random() % 6;
    const auto block = arena.take(wanted * granule - random() % granule);
    ASSERT_EQ(block.has_value(), longest_free_run() >= wanted);
    if (!block) continue;
    ASSERT_EQ(block->count, wanted);
    ASSERT_EQ(block->data, arena.region().data + block->first * granule);
    for (std::uint32_t g = block->first; g < block->first + block->count; ++g) {
      ASSERT_FALSE(used[g]);
      used[g] = true;
    }
    held.push_back(*block);
  }
}

}  // namespace
}  // namespace penstock::core
