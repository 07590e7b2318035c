#include "services/rows/cold.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
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

// Rows of 16 bytes, of which those with one number between them are joined.
class ColdPlans : public testing::Test {
 protected:
  static Table make_table(const Context& context) {
    const Recipe recipe{"made", 16'000, [](std::uint64_t, std::span<std::byte>) { return Status(); }};
    auto shard = std::make_shared<const Shard>(context.open(recipe).value(), Place{0, 16, 1000, false});
    TableInfo info;
    info.row_bytes = 16;
    return {context, std::move(info), {std::move(shard)}, {.join_bytes = 16}};
  }
  using Found =
      std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // a position, and where its row is in the scratch

  Context context_ = Context::create({.lanes = 1}).value();
  const Table table_ = make_table(context_);
  const std::vector<ColdRow> cold_ = {{5, 0}, {20, 3}, {22, 1}, {40, 2}, {40, 5}, {60, 4}};
};

TEST_F(ColdPlans, read_rows_straight_that_have_no_neighbours_and_are_asked_for_once) {
  const ColdPlan plan = plan_cold(table_, cold_, Lone::straight);
  ASSERT_EQ(plan.extents.size(), 4U);
  EXPECT_EQ(plan.straight_rows, 2U);
  EXPECT_EQ(plan.wanted_bytes, 5 * 16U);
  EXPECT_EQ(plan.read_bytes, 6 * 16U);
  EXPECT_EQ(plan.scratch_bytes, 64 + 16U);
  std::vector<std::uint64_t> straight;
  for (const ColdExtent& extent : plan.extents) {
    if (extent.is_straight) straight.push_back(cold_[extent.first].position);
  }
  EXPECT_EQ(straight, (std::vector<std::uint64_t>{0, 4}));
  Found by_scratch;
  for_each_in_scratch(table_, plan, cold_,
                      [&](std::uint64_t position, std::uint64_t offset) { by_scratch.emplace_back(position, offset); });
  EXPECT_EQ(by_scratch, (Found{{3, 0}, {1, 32}, {2, 64}, {5, 64}}));
}

TEST_F(ColdPlans, read_nothing_straight_where_that_is_not_wanted) {
  const ColdPlan plan = plan_cold(table_, cold_, Lone::by_scratch);
  EXPECT_EQ(plan.straight_rows, 0U);
  EXPECT_EQ(plan.scratch_bytes, 3 * 64 + 16U);
  EXPECT_EQ(plan.read_bytes, 6 * 16U);
}

}  // namespace
}  // namespace penstock::rows
