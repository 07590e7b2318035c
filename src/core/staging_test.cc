#include "core/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "core/test_key_engine.h"

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

class LaneStagingTest : public testing::Test {
 protected:
  LaneStagingTest() {
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      table_->push_back(std::make_unique<KeyEngine>(reaches[i]));
      engines_[i] = static_cast<KeyEngine*>(table_->back().get());
    }
  }

  static constexpr std::size_t size_bytes = 4 * granule;
  static constexpr std::array reaches = {engine::HostReach::any, engine::HostReach::attached, engine::HostReach::own};
  const std::shared_ptr<engine::Table> table_ = std::make_shared<engine::Table>();
  std::array<KeyEngine*, 3> engines_{};
  const std::shared_ptr<memory::Budget> budget_ = std::make_shared<memory::Budget>(6 * granule);
};

TEST_F(LaneStagingTest, is_made_when_it_is_first_needed_and_charged_until_it_is_cleared) {
  LaneStaging staging(size_bytes, budget_, table_);
  EXPECT_EQ(budget_->used_bytes(), 0U);
  StagingArena* const arena = staging.get().value();
  EXPECT_EQ(arena->largest_bytes(), size_bytes);
  EXPECT_EQ(budget_->used_bytes(), size_bytes);
  EXPECT_EQ(staging.get().value(), arena);
  EXPECT_EQ(budget_->used_bytes(), size_bytes) << "charged once";
  staging.clear();
  EXPECT_EQ(budget_->used_bytes(), 0U);
}

TEST_F(LaneStagingTest, is_refused_over_budget_and_made_once_there_is_room) {
  LaneStaging staging(size_bytes, budget_, table_);
  ASSERT_TRUE(budget_->charge(3 * granule));
  for (int again = 0; again < 2; ++again) {
    const auto refused = staging.get();
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::over_budget);
    EXPECT_NE(refused.error().message.find("no staging memory"), std::string::npos) << refused.error().message;
    EXPECT_EQ(staging.get_for(0, 1).error().code, Code::over_budget);
  }
  EXPECT_EQ(budget_->used_bytes(), 3 * granule) << "nothing is charged for what is not there";
  budget_->refund(3 * granule);
  EXPECT_TRUE(staging.get().ok());
}

TEST_F(LaneStagingTest, says_what_does_not_fit_it) {
  LaneStaging staging(size_bytes, budget_, table_);
  EXPECT_TRUE(staging.get_for(0, size_bytes).ok());
  const auto refused = staging.get_for(0, size_bytes + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_NE(refused.error().hint.find("staging_slot_bytes"), std::string::npos) << refused.error().hint;
}

TEST_F(LaneStagingTest, is_attached_once_to_each_engine_and_detached_from_each) {
  LaneStaging staging(size_bytes, budget_, table_);
  for (const std::size_t i : {0, 1}) {
    for (int again = 0; again < 2; ++again) EXPECT_EQ(staging.get_for(i, 1).value(), staging.get().value());
    EXPECT_EQ(engines_[i]->attached, std::set{staging.attached_to(i)});
  }
  staging.detach();
  for (const KeyEngine* engine : engines_) EXPECT_TRUE(engine->attached.empty());
  staging.detach();
}

TEST_F(LaneStagingTest, is_used_without_being_attached_where_the_engine_can_do_without) {
  LaneStaging staging(size_bytes, budget_, table_);
  for (KeyEngine* engine : engines_) engine->most_bytes = size_bytes - 1;
  EXPECT_TRUE(staging.get_for(0, 1).ok());
  EXPECT_EQ(staging.attached_to(0), nullptr);
  EXPECT_EQ(staging.get_for(1, 1).error().code, Code::out_of_memory);
  EXPECT_EQ(staging.get_for(2, 1).error().code, Code::out_of_memory);
  for (KeyEngine* engine : engines_) engine->most_bytes = SIZE_MAX;
  EXPECT_TRUE(staging.get_for(0, 1).ok());
  EXPECT_EQ(staging.attached_to(0), nullptr) << "it is asked once, not for every piece";
  EXPECT_TRUE(staging.get_for(1, 1).ok()) << "what is needed is asked for again";
  EXPECT_TRUE(staging.get_for(2, 1).ok());
  staging.detach();
  staging.clear();
}

TEST_F(LaneStagingTest, knows_the_most_that_one_piece_can_take) {
  LaneStaging staging(size_bytes, budget_, table_);
  EXPECT_EQ(staging.room_bytes(), size_bytes) << "before it is made";
  StagingArena* const arena = staging.get().value();
  EXPECT_EQ(staging.room_bytes(), size_bytes);
  const auto first = arena->take(granule).value();
  const auto second = arena->take(1).value();
  EXPECT_EQ(staging.room_bytes(), size_bytes - 2 * granule);
  arena->give_back(first);
  EXPECT_EQ(staging.room_bytes(), std::max(granule, size_bytes - 2 * granule)) << "what is between them divides it";
  arena->give_back(second);
  EXPECT_EQ(staging.room_bytes(), size_bytes);
  staging.clear();
}

TEST_F(LaneStagingTest, lies_in_the_memory_of_an_engine_that_reaches_no_other) {
  LaneStaging staging(size_bytes, budget_, table_);
  StagingArena* const own = staging.get_for(2, 1).value();
  EXPECT_EQ(budget_->used_bytes(), 0U) << "it is not ours";
  EXPECT_NE(own, staging.get().value());
  EXPECT_EQ(staging.get_for(2, size_bytes).value(), own);
  EXPECT_EQ(engines_[2]->attached, std::set{staging.attached_to(2)});
  const auto block = own->take(granule).value();
  EXPECT_EQ(block.arena, own);
  block.data[0] = std::byte{1};
  own->give_back(block);
  staging.detach();
  EXPECT_EQ(engines_[2]->attached.size(), 1U) << "the memory is there until it is cleared";
  staging.clear();
  EXPECT_TRUE(engines_[2]->attached.empty());
}

}  // namespace
}  // namespace penstock::core
