#include "files/ring.h"

#include <gtest/gtest.h>

namespace penstock::files {
namespace {

TEST(Ring, gives_back_in_order_while_it_wraps) {
  Ring<int> ring(3);
  int next_in = 0;
  int next_out = 0;
  for (int round = 0; round < 10; ++round) {
    while (!ring.full()) ring.push(next_in++);
    EXPECT_EQ(ring.size(), 3U);
    EXPECT_EQ(ring.pop(), next_out++);
    EXPECT_EQ(ring.pop(), next_out++);
  }
}

TEST(Ring, lets_go_of_an_item_in_the_middle) {
  Ring<int> ring(4);
  for (const int item : {9, 1, 2, 3}) ring.push(item);
  ring.pop();
  ring.push(4);
  int found = 0;
  EXPECT_TRUE(ring.take([](int item) { return item == 2; }, found));
  EXPECT_EQ(found, 2);
  EXPECT_FALSE(ring.take([](int item) { return item == 2; }, found));
  EXPECT_EQ(ring.pop(), 1);
  EXPECT_EQ(ring.pop(), 3);
  EXPECT_EQ(ring.pop(), 4);
  EXPECT_TRUE(ring.empty());
}

TEST(RingDeathTest, ends_the_process_rather_than_lose_an_item) {
  Ring<int> ring(1);
  ring.push(1);
  EXPECT_DEATH(ring.push(2), "");
}

}  // namespace
}  // namespace penstock::files
