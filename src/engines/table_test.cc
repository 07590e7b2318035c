#include "engines/table.h"

#include <gtest/gtest.h>

namespace penstock::engines {
namespace {

TEST(Table, prefers_deep_queues_and_ends_with_what_works_everywhere) {
  const engine::Table table = default_table();
  ASSERT_EQ(table.size(), 6U);
  EXPECT_EQ(table.front()->description().name, "uring");
  EXPECT_EQ(table.back()->description().name, "posix");
  EXPECT_TRUE(table.back()->probe().available);
}

}  // namespace
}  // namespace penstock::engines
