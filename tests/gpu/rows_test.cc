// Rows of tables, in GPU memory.
#include <algorithm>
#include <random>

#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

class GpuRows : public GpuTest {
 protected:
  static constexpr std::size_t row_bytes = 400;
  static constexpr std::size_t table_rows = 10'000;
  const std::vector<std::byte> table_ = content(7, 0, table_rows* row_bytes);

  testing::AssertionResult holds_rows(std::span<const std::byte> bytes, const std::vector<std::int32_t>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto row = std::span(table_).subspan(static_cast<std::size_t>(numbers[i]) * row_bytes, row_bytes);
      if (!same_bytes(row, bytes.subspan(i * row_bytes, row_bytes))) return testing::AssertionFailure() << "row " << i;
    }
    return testing::AssertionSuccess();
  }
};

TEST_F(GpuRows, arrive_in_the_order_of_their_numbers_which_may_lie_on_the_gpu) {
  const std::string path = folder_.path("table");
  write_file(path, table_);
  std::mt19937 random(1);
  std::vector<std::int32_t> numbers(5000);
  for (std::int32_t& number : numbers) number = static_cast<std::int32_t>(random() % table_rows);
  options_.lanes = 2;
  Context context = make_context();
  const Buffer on_gpu = context.allocate(Domain::cuda(0), numbers.size() * 4).value();
  fill(on_gpu.region(), std::as_bytes(std::span(numbers)));
  for (const bool warmed : {true, false}) {
    if (warmed) {
      warm(path);
    } else {
      evict(path);
    }
    const Rows table = Rows::open_raw(context, path, {.row_bytes = row_bytes}).value();
    for (const RowNumbers& asked : {RowNumbers(numbers), RowNumbers(RowNumbers::Type::i32, on_gpu.region())}) {
      const auto gathered = table.gather(asked, Domain::cuda(0));
      ASSERT_TRUE(gathered.ok()) << gathered.error().message;
      EXPECT_TRUE(holds_rows(bytes_of(gathered->buffer.region()), numbers));
      EXPECT_EQ(gathered->report.filling.routes[static_cast<std::size_t>(Route::made_staged)],
                gathered->buffer.size_bytes());
    }
  }
}

TEST_F(GpuRows, numbers_on_the_gpu_leave_lanes_the_pinned_memory_they_need) {
  const std::string path = folder_.path("table");
  write_file(path, table_);
  options_.lanes = 2;
  options_.pinned_budget_bytes = 16 << 20;
  Context context = make_context();
  const Rows table = Rows::open_raw(context, path, {.row_bytes = 4}).value();
  const Buffer on_gpu = context.allocate(Domain::cuda(0), 12'000'000).value();
  fill(on_gpu.region(), std::vector<std::byte>(on_gpu.size_bytes()));  // 3 million times the first row
  const auto gathered = table.gather(RowNumbers(RowNumbers::Type::i32, on_gpu.region()), Domain::cuda(0));
  ASSERT_TRUE(gathered.ok()) << gathered.error().message;
  std::vector<std::byte> expected(gathered->buffer.size_bytes());
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = table_[i % 4];
  EXPECT_TRUE(same_bytes(bytes_of(gathered->buffer.region()), expected));
}

// The size of a row.
class GpuColdRows : public GpuTest, public testing::WithParamInterface<std::size_t> {
 protected:
  // Of a table; zeros for negative numbers.
  static std::vector<std::byte> rows_of(std::span<const std::byte> table, std::span<const std::int64_t> numbers) {
    const std::size_t row_bytes = GetParam();
    std::vector<std::byte> rows(numbers.size() * row_bytes);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] < 0) continue;
      const auto row = table.subspan(static_cast<std::size_t>(numbers[i]) * row_bytes, row_bytes);
      std::ranges::copy(row, rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes));
    }
    return rows;
  }
};

INSTANTIATE_TEST_SUITE_P(Of, GpuColdRows, testing::Values(256, 4096, 5000, 300'000), testing::PrintToStringParamName());

TEST_P(GpuColdRows, are_read_to_their_places_where_they_are_alone_between_others) {
  constexpr std::uint64_t groups = 50;
  const std::uint64_t row_bytes = GetParam();
  const std::uint64_t step = 30'000 / row_bytes + 3;
  const std::string path = folder_.path("table");
  const std::vector<std::byte> bytes = content(7, 0, (groups * step + 1) * row_bytes);
  write_file(path, bytes);
  evict(path);
  options_.lanes = 2;
  Context context = make_context();
  std::vector<std::int64_t> numbers(9, -1);
  std::uint64_t lone_rows = 0;
  for (std::uint64_t group = 0; group <= groups; ++group) {
    const auto row = static_cast<std::int64_t>(group * step);
    const std::int64_t of_kind[] = {row, row, row + 1};  // alone, twice, with a neighbour
    numbers.push_back(row);
    if (group % 5 == 1 || group % 5 == 2) numbers.push_back(of_kind[group % 5]);
    lone_rows += group % 5 == 1 || group % 5 == 2 ? 0 : 1;
  }
  std::ranges::shuffle(numbers, std::mt19937(1));
  const Rows table = Rows::open_raw(context, path, {.row_bytes = row_bytes}, {.mapping = false}).value();
  const auto gathered = table.gather(numbers, Domain::cuda(0), {.zeros_for_missing = true});
  ASSERT_TRUE(gathered.ok()) << gathered.error().message;
  EXPECT_TRUE(same_bytes(bytes_of(gathered->buffer.region()), rows_of(bytes, numbers)));
  const RowsReport& report = gathered->report;
  EXPECT_GE(report.filling.bytes, (numbers.size() - lone_rows) * row_bytes);
  EXPECT_LE(report.filling.bytes, (numbers.size() + report.cold_rows - lone_rows) * row_bytes);
  EXPECT_EQ(report.missing_rows, 9U);
  const std::uint64_t different_rows = groups + 1 + groups / 5;  // with the neighbours
  EXPECT_EQ(report.read_bytes - report.extra_bytes, different_rows * row_bytes);
}

// Half of the file is cached, and most rows that are asked for lie there.
TEST_P(GpuColdRows, are_read_over_zeros_that_were_copied_with_what_was_cached) {
  const std::uint64_t row_bytes = GetParam();
  const std::uint64_t rows = std::max<std::uint64_t>(400, (2 << 20) / row_bytes);
  const std::string path = folder_.path("table");
  const std::vector<std::byte> bytes = content(8, 0, rows * row_bytes);
  write_file(path, bytes);
  evict(path);
  warm(path, bytes.size() / 2);
  options_.lanes = 2;
  Context context = make_context();
  std::vector<std::int64_t> numbers(3000, -1);
  std::mt19937_64 random(8);
  for (std::int64_t& number : numbers) {
    const std::uint64_t first = random() % 10 == 0 ? rows / 2 : 0;
    if (random() % 50 != 0) number = static_cast<std::int64_t>(first + random() % (rows / 2));
  }
  numbers.resize(std::min<std::size_t>(numbers.size(), (64 << 20) / row_bytes));
  const Rows table = Rows::open_raw(context, path, {.row_bytes = row_bytes}).value();
  const auto gathered = table.gather(numbers, Domain::cuda(0), {.zeros_for_missing = true});
  ASSERT_TRUE(gathered.ok()) << gathered.error().message;
  EXPECT_TRUE(same_bytes(bytes_of(gathered->buffer.region()), rows_of(bytes, numbers)));
}

}  // namespace
}  // namespace penstock::test
