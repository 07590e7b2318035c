#include "services/layers/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace penstock::layers {
namespace {

constexpr std::uint64_t page = slot_alignment_bytes;

TEST(LayersSlots, where_all_groups_fit_each_has_a_slot_of_its_own) {
  const std::vector<std::uint64_t> sizes = {10 * page, 11 * page, 10 * page};
  const auto classes = cut_into_slots(sizes, 31 * page);
  ASSERT_EQ(classes.size(), 2);
  EXPECT_EQ(classes[0].slots, 2);
  EXPECT_EQ(classes[0].groups, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(bytes_of(classes), 31 * page);
}

TEST(LayersSlots, sizes_that_differ_by_an_eighth_share_slots_of_the_largest) {
  const std::vector<std::uint64_t> sizes = {8 * page, 9 * page, 8 * page, 20 * page};
  const auto classes = cut_into_slots(sizes, 40 * page);
  ASSERT_EQ(classes.size(), 2);
  EXPECT_EQ(classes[0].slot_bytes, 9 * page);
  EXPECT_EQ(classes[0].groups, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(classes[0].slots, 2);
  EXPECT_EQ(classes[1].slots, 1);
}

TEST(LayersSlots, a_small_budget_makes_classes_share_slots) {
  const std::vector<std::uint64_t> sizes = {1 * page, 2 * page, 10 * page, 12 * page};
  EXPECT_EQ(cut_into_slots(sizes, 25 * page).size(), 4);
  EXPECT_EQ(cut_into_slots(sizes, 27 * page - 1).size(), 4);
  EXPECT_EQ(cut_into_slots(sizes, 24 * page).size(), 2);  // 10 and 12 are closest, and then 1 and 2
  const auto one = cut_into_slots(sizes, 12 * page);
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one[0].slot_bytes, 12 * page);
  EXPECT_EQ(one[0].groups.size(), 4);
}

TEST(LayersSlots, the_class_with_the_most_groups_has_two_slots_before_others_have_their_own) {
  const std::vector<std::uint64_t> sizes = {3 * page, 3 * page, 3 * page, 2 * page, 2 * page};
  const auto shared = cut_into_slots(sizes, 7 * page);
  ASSERT_EQ(shared.size(), 1);
  EXPECT_EQ(shared[0].slots, 2);
  const auto apart = cut_into_slots(sizes, 8 * page);
  ASSERT_EQ(apart.size(), 2);
  EXPECT_EQ(apart[0].slots, 1);
  EXPECT_EQ(apart[1].slots, 2);
}

TEST(LayersSlots, a_group_needs_whole_pages) {
  EXPECT_EQ(slot_bytes_for(0), page);
  EXPECT_EQ(slot_bytes_for(1), page);
  EXPECT_EQ(slot_bytes_for(3 * page), 3 * page);
  EXPECT_EQ(slot_bytes_for(3 * page + 1), 4 * page);
}

TEST(LayersSlots, sizes_are_rounded_up_to_pages_and_nothing_takes_one) {
  const auto classes = cut_into_slots(std::vector<std::uint64_t>{0, 1, page + 1}, 4 * page);
  EXPECT_EQ(bytes_of(classes), 4 * page);
}

TEST(LayersSlots, whatever_the_sizes_every_group_has_a_slot_and_the_budget_holds) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::uint64_t> sizes(1 + random() % 40);
    for (std::uint64_t& bytes : sizes) bytes = (1 + random() % (std::uint64_t{1} << (random() % 12))) * page;
    const std::uint64_t largest = *std::ranges::max_element(sizes);
    const std::uint64_t budget = largest + random() % (20 * largest);
    const auto classes = cut_into_slots(sizes, budget);
    EXPECT_LE(bytes_of(classes), budget);
    std::vector<int> seen(sizes.size());
    std::uint64_t wanted = 0;
    for (const SlotClass& each : classes) {
      EXPECT_GE(each.slots, 1);
      EXPECT_LE(each.slots, each.groups.size());
      if (each.slots < each.groups.size()) {
        EXPECT_GT(bytes_of(classes) + each.slot_bytes, budget) << "room is left for another";
      }
      for (const std::uint32_t group : each.groups) {
        ++seen[group];
        EXPECT_LE(sizes[group], each.slot_bytes);
        wanted += sizes[group];
      }
    }
    EXPECT_TRUE(std::ranges::all_of(seen, [](int times) { return times == 1; }));
    if (wanted <= budget) {
      EXPECT_EQ(bytes_of(classes), wanted);
    }
  }
}

}  // namespace
}  // namespace penstock::layers
