// Rows of tables, in GPU memory.
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

}  // namespace
}  // namespace penstock::test
