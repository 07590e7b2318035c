#include "services/rows/cold.h"

#include <gtest/gtest.h>

#include <vector>

namespace penstock::rows {
namespace {

TEST(ColdRows, counts_different_rows_nearly_and_never_too_many) {
  EXPECT_EQ(different_rows_at_least({}), 0U);
  const std::vector<ColdRow> same(1000, ColdRow{7, 0});
  EXPECT_EQ(different_rows_at_least(same), 1U);
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{4096}, std::uint64_t{1} << 40}) {
    std::vector<ColdRow> twice;
    for (std::uint64_t i = 0; i < 20'000; ++i) twice.push_back({i % 10'000 * step, i});
    const std::size_t count = different_rows_at_least(twice);
    EXPECT_LE(count, 10'000U) << step;
    EXPECT_GE(count, 5'000U) << step;
  }
}

}  // namespace
}  // namespace penstock::rows
