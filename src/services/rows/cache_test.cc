#include "services/rows/cache.h"

#include <gtest/gtest.h>

namespace penstock::rows {
namespace {

TableInfo table_of(std::uint64_t rows, std::uint64_t row_bytes) {
  return {.rows = rows, .row_bytes = row_bytes, .row_shape = {}, .dtype = ""};
}

TEST(RowCache, keeps_to_its_budget_and_takes_no_more_than_the_table_needs) {
  for (const std::uint64_t row_bytes : {1, 40, 256, 4096, 100'000}) {
    for (const std::uint64_t rows : {1, 17, 1000, 1'000'000}) {
      const TableInfo table = table_of(rows, row_bytes);
      for (std::uint64_t budget = 1; budget < std::uint64_t{1} << 40; budget = budget * 3 + 1) {
        const Cache::Shape shape = Cache::shape_for(table, budget);
        EXPECT_LE(shape.bytes(), budget);
        EXPECT_LT(shape.rows(), rows + cuda::RowCacheLayout::ways);
        if (shape.sets == 0) {
          EXPECT_LT(budget, cuda::RowCacheLayout::ways * (row_bytes + 32) + 256) << "there is room for a set";
        }
      }
      EXPECT_GE(Cache::shape_for(table, UINT64_MAX).rows(), rows) << "all have room";
    }
  }
}

TEST(RowCache, has_an_odd_number_of_sets_unless_all_rows_have_room) {
  const TableInfo table = table_of(1'000'000, 256);
  for (std::uint64_t budget = 10'000; budget < 100'000'000; budget += 333'333) {
    EXPECT_EQ(Cache::shape_for(table, budget).sets % 2, 1U) << budget;
  }
  EXPECT_EQ(Cache::shape_for(table, UINT64_MAX).sets, 62'500U);
}

TEST(RowCache, has_slots_that_kernels_copy_by_16_bytes) {
  EXPECT_EQ(Cache::shape_for(table_of(100, 1), 1 << 20).slot_bytes, 16U);
  EXPECT_EQ(Cache::shape_for(table_of(100, 48), 1 << 20).slot_bytes, 48U);
  EXPECT_EQ(Cache::shape_for(table_of(100, 49), 1 << 20).slot_bytes, 64U);
}

}  // namespace
}  // namespace penstock::rows
