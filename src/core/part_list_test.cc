#include "core/part_list.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace penstock::core {
namespace {

class PartListTest : public testing::Test {
 protected:
  void push_all() {
    for (Part& part : parts_) list_.push(part);
  }
  // Empties the list; the parts by their index, in turn.
  std::vector<std::ptrdiff_t> pop_all() {
    std::vector<std::ptrdiff_t> indices;
    while (!list_.empty()) indices.push_back(&list_.pop() - parts_.data());
    return indices;
  }
  using Indices = std::vector<std::ptrdiff_t>;

  std::array<Part, 3> parts_;
  PartList list_;
};

TEST_F(PartListTest, gives_parts_in_the_order_in_which_they_came) {
  EXPECT_TRUE(list_.empty());
  push_all();
  EXPECT_FALSE(list_.empty());
  EXPECT_EQ(&list_.front(), &parts_[0]);
  EXPECT_EQ(pop_all(), (Indices{0, 1, 2}));
  for (const Part& part : parts_) EXPECT_FALSE(part.in_list);
}

TEST_F(PartListTest, can_be_filled_again_once_it_was_empty) {
  push_all();
  pop_all();
  list_.push(parts_[2]);
  list_.push(parts_[0]);
  EXPECT_EQ(pop_all(), (Indices{2, 0}));
}

TEST_F(PartListTest, rotates_the_first_to_the_end) {
  list_.push(parts_[0]);
  list_.rotate();
  EXPECT_EQ(&list_.front(), &parts_[0]) << "alone, it is its own successor";
  list_.push(parts_[1]);
  list_.push(parts_[2]);
  list_.rotate();
  EXPECT_EQ(pop_all(), (Indices{1, 2, 0}));
}

TEST_F(PartListTest, loses_a_part_from_anywhere_and_keeps_the_others) {
  for (const std::size_t removed : {0U, 1U, 2U}) {
    push_all();
    list_.remove(parts_[removed]);
    EXPECT_FALSE(parts_[removed].in_list);
    // At the end again: whoever was last must know it.
    list_.push(parts_[removed]);
    Indices expected{0, 1, 2};
    std::erase(expected, static_cast<std::ptrdiff_t>(removed));
    expected.push_back(static_cast<std::ptrdiff_t>(removed));
    EXPECT_EQ(pop_all(), expected) << removed;
  }
}

TEST_F(PartListTest, is_empty_without_its_only_part) {
  list_.push(parts_[1]);
  list_.remove(parts_[1]);
  EXPECT_TRUE(list_.empty());
  list_.push(parts_[0]);
  EXPECT_EQ(pop_all(), Indices{0});
}

TEST_F(PartListTest, minds_no_part_that_is_in_no_list) {
  list_.push(parts_[0]);
  list_.remove(parts_[1]);
  EXPECT_EQ(pop_all(), Indices{0});
  list_.remove(parts_[0]);
  EXPECT_TRUE(list_.empty());
}

class ActivePartsTest : public testing::Test {
 protected:
  std::vector<std::ptrdiff_t> all() {
    std::vector<std::ptrdiff_t> indices;
    active_.for_each([&](const Part& part) { indices.push_back(&part - parts_.data()); });
    return indices;
  }
  using Indices = std::vector<std::ptrdiff_t>;

  std::array<Part, 3> parts_;
  ActiveParts active_;
};

TEST_F(ActivePartsTest, lose_one_from_anywhere_and_keep_the_others) {
  EXPECT_TRUE(active_.empty());
  for (const std::size_t removed : {0U, 1U, 2U}) {
    for (Part& part : parts_) active_.push(part);
    active_.remove(parts_[removed]);
    Indices left{2, 1, 0};
    std::erase(left, static_cast<std::ptrdiff_t>(removed));
    EXPECT_EQ(all(), left);
    for (const std::ptrdiff_t index : left) active_.remove(parts_[static_cast<std::size_t>(index)]);
    EXPECT_TRUE(active_.empty());
  }
}

TEST_F(ActivePartsTest, are_visited_once_each_though_one_leaves_and_comes_back) {
  for (Part& part : parts_) active_.push(part);
  Indices visited;
  active_.for_each([&](Part& part) {
    visited.push_back(&part - parts_.data());
    active_.remove(part);
    if (&part == &parts_[1]) active_.push(part);
  });
  EXPECT_EQ(visited, (Indices{2, 1, 0}));
  EXPECT_EQ(all(), (Indices{1}));
}

}  // namespace
}  // namespace penstock::core
