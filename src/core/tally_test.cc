#include "core/tally.h"

#include <gtest/gtest.h>

namespace penstock::core {
namespace {

TEST(Tally, adds_up_one_kind_and_several) {
  Tally<4> tally;
  Tally<4>::Bytes sums{};
  tally.add_to(sums);
  EXPECT_EQ(sums, (Tally<4>::Bytes{}));
  tally.add(2, 0);
  tally.add(2, 10);
  tally.add(2, 5);
  tally.add(1, 0);
  tally.add_to(sums);
  EXPECT_EQ(sums, (Tally<4>::Bytes{0, 0, 15, 0}));
  tally.add(0, 3);
  tally.add(2, 1);
  tally.add_to(sums);
  EXPECT_EQ(sums, (Tally<4>::Bytes{3, 0, 31, 0})) << "what was there is added to";
}

}  // namespace
}  // namespace penstock::core
