// Bytes that a function makes, in GPU memory.
#include <numeric>
#include <random>

#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

class Made : public GpuTest {
 protected:
  // Rows of a table, by their numbers.
  Recipe rows(std::vector<std::uint32_t> numbers) {
    const std::uint64_t size = numbers.size() * row_bytes;
    return {.name = "rows", .size_bytes = size, .make = [this, numbers = std::move(numbers)](auto offset, auto memory) {
              for (std::size_t at = 0; at < memory.size();) {
                const std::uint64_t place = offset + at;
                const std::size_t in_row = place % row_bytes;
                const std::size_t count = std::min(row_bytes - in_row, memory.size() - at);
                const std::byte* const row = table_.data() + numbers[place / row_bytes] * row_bytes;
                std::copy_n(row + in_row, count, memory.data() + at);
                at += count;
              }
              return Status();
            }};
  }

  static constexpr std::size_t row_bytes = 400;
  static constexpr std::size_t table_rows = 10'000;
  const std::vector<std::byte> table_ = content(7, 0, table_rows* row_bytes);
};

TEST_F(Made, rows_arrive_in_the_order_of_their_numbers) {
  std::mt19937 random(1);
  std::vector<std::uint32_t> numbers(30'000);
  for (std::uint32_t& number : numbers) number = static_cast<std::uint32_t>(random() % table_rows);
  options_.lanes = 3;
  options_.staging_slot_bytes = 256 << 10;
  Context context = make_context();
  const Store store = context.open(rows(numbers)).value();
  const Buffer memory = context.allocate(Domain::cuda(0), store.info().size_bytes).value();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_EQ(report.routes[static_cast<std::size_t>(Route::made_staged)], memory.size_bytes());
  const auto bytes = bytes_of(memory.region());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_TRUE(same_bytes({&table_[numbers[i] * row_bytes], row_bytes}, {&bytes[i * row_bytes], row_bytes})) << i;
  }
}

TEST_F(Made, in_stream_order_the_function_is_asked_when_the_stream_has_come_to_it) {
  PENSTOCK_NEEDS_FAKE();
  const cuda::CuStream stream = make_stream(cuda::cu_stream_non_blocking);
  Context context = make_context();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  std::atomic<bool> asked{false};
  const Store store = context
                          .open(Recipe{.name = "seven",
                                       .size_bytes = 4096,
                                       .make =
                                           [&](auto, auto memory) {
                                             asked = true;
                                             std::fill(memory.begin(), memory.end(), std::byte{7});
                                             return Status();
                                           }})
                          .value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4096).value();
  const Range range{&store, 0, memory.region()};
  fake_->hang(0, 1);
  const Ticket ticket = context.submit(Direction::read, {&range, 1}, {.stream = CudaStream{stream}}).value();
  EXPECT_FALSE(ticket.wait_for(std::chrono::milliseconds(20)));
  EXPECT_FALSE(asked);
  fake_->hang(0, 0);
  EXPECT_EQ(ticket.wait(), Outcome::done);
  EXPECT_TRUE(asked);
  EXPECT_EQ(bytes_of(memory.region()), std::vector<std::byte>(4096, std::byte{7}));
}

}  // namespace
}  // namespace penstock::test
