#include "services/rows/errand.h"

#include <gtest/gtest.h>

#include <limits>

namespace penstock::rows {
namespace {

// The deadline of the first request of a gather, in a Context whose requests have this one.
double first_deadline(double of_context, double of_gather) {
  Context context = Context::create({.deadlines = {.request_seconds = of_context}}).value();
  const Recipe recipe{"made", 100, [](std::uint64_t, std::span<std::byte>) { return Status(); }};
  auto shard = std::make_shared<const Shard>(context.open(recipe).value(), Place{0, 1, 100, false});
  TableInfo info;
  info.row_bytes = 1;
  const Table table(context, std::move(info), {std::move(shard)}, {});
  const GatherOptions options{.deadline_seconds = of_gather};
  Errand errand{table, RowNumbers(RowNumbers::Type::i64, {}), nullptr, {}, options, Errand::Clock::now()};
  const double deadline = errand.request_options().deadline_seconds;
  EXPECT_EQ(errand.goes_on(), deadline >= 0);
  return deadline;
}

TEST(Errand, has_one_deadline_for_all_its_requests) {
  EXPECT_EQ(first_deadline(0, 0), 0);
  EXPECT_LT(first_deadline(1000, 0), 1000);
  EXPECT_GT(first_deadline(1000, 0), 0);
  EXPECT_LT(first_deadline(1000, 2000), 2000);
  EXPECT_GT(first_deadline(1000, 2000), 1000);
  EXPECT_LT(first_deadline(1e-9, 0), 0);
  EXPECT_LT(first_deadline(1000, -1), 0);
  EXPECT_EQ(first_deadline(1000, std::numeric_limits<double>::infinity()), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace penstock::rows
