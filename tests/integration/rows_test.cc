// Rows of tables, as a program gathers them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "integration/context_fixture.h"
#include "support/cache_limit.h"
#include "support/support.h"

namespace penstock::test {
namespace {

constexpr std::uint64_t row_bytes = 300;  // of no alignment
constexpr std::uint64_t table_rows = 20'000;

class RowsOfTable : public ContextTest {
 protected:
  // Raw rows behind a few bytes of something else.
  std::string make_table(const std::string& name = "table", std::uint64_t rows = table_rows) const {
    write_file(folder_.path(name), content(1, 0, offset + rows * row_bytes));
    return folder_.path(name);
  }
  Result<Rows> open(const std::string& path, const RowsOptions& options = {}) {
    return Rows::open_raw(context_, path, {.offset = offset, .row_bytes = row_bytes}, options);
  }
  template <typename Number>
  static std::vector<Number> random_numbers(std::size_t count, std::uint64_t below, std::uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    std::vector<Number> numbers(count);
    for (Number& number : numbers) number = static_cast<Number>(random() % below);
    return numbers;
  }
  template <typename Number>
  static testing::AssertionResult holds_rows(std::span<const std::byte> bytes, const std::vector<Number>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto row = bytes.subspan(i * row_bytes, row_bytes);
      const auto held = holds_content(row, 1, offset + static_cast<std::uint64_t>(numbers[i]) * row_bytes);
      if (!held) return testing::AssertionFailure() << "row " << i << ": " << held.message();
    }
    return testing::AssertionSuccess();
  }
  static std::string message_of(const RowsReport& report) { return report.error ? report.error->message : "no error"; }

  static constexpr std::uint64_t offset = 100;
  Context context_ = make_context();
};

TEST_F(RowsOfTable, come_in_the_order_of_their_numbers_from_the_cache_and_from_the_disk) {
  const std::string path = make_table();
  const auto numbers = random_numbers<std::int64_t>(5000, table_rows);
  for (const bool warmed : {true, false}) {
    if (warmed) {
      warm(path);
    } else {
      evict(path);
    }
    for (const bool mapping : {true, false}) {
      const Rows table = open(path, {.mapping = mapping}).value();
      EXPECT_EQ(table.info().rows, table_rows);
      const auto gathered = table.gather(numbers, Domain::host());
      ASSERT_TRUE(gathered.ok()) << gathered.error().message;
      EXPECT_TRUE(holds_rows(gathered->buffer.bytes(), numbers));
      const RowsReport& report = gathered->report;
      EXPECT_EQ(report.bytes, numbers.size() * row_bytes);
      EXPECT_EQ(report.cached_rows + report.cold_rows, numbers.size());
      EXPECT_EQ(report.cold_rows == 0, report.read_bytes == 0);
      EXPECT_TRUE(mapping || report.cached_rows == 0);
    }
  }
}

TEST_F(RowsOfTable, cached_rows_are_copied_from_a_mapping) {
  const std::string path = make_table();
  warm(path);
  const Store store = context_.open(path).value();
  if (store.cached_bytes(0, store.info().size_bytes) != store.info().size_bytes) {
    GTEST_SKIP() << "the page cache does not keep the file";
  }
  const Rows table = open(path).value();
  const auto gathered = table.gather(random_numbers<std::int32_t>(5000, table_rows), Domain::host()).value();
  EXPECT_EQ(gathered.report.cached_rows, 5000U);
  EXPECT_EQ(gathered.report.read_bytes, 0U);
  EXPECT_EQ(bytes_by(gathered.report.filling, Route::made), gathered.buffer.size_bytes());
}

TEST_F(RowsOfTable, a_cold_row_is_read_once_however_often_it_is_asked_for) {
  const std::string path = make_table();
  evict(path);
  const Rows table = open(path, {.mapping = false}).value();
  const std::vector<std::uint32_t> numbers(10'000, 17);
  const auto gathered = table.gather(numbers, Domain::host()).value();
  EXPECT_TRUE(holds_rows(gathered.buffer.bytes(), numbers));
  EXPECT_EQ(gathered.report.cold_rows, 10'000U);
  EXPECT_LE(gathered.report.read_bytes, 3 * 4096U);
  EXPECT_EQ(gathered.report.read_bytes - gathered.report.extra_bytes, row_bytes);
}

TEST_F(RowsOfTable, rows_of_a_cold_table_that_fits_are_read_once) {
  const std::string path = make_table("cold", 40'000);
  evict(path);
  if (!context_.open(path).value().info().direct) GTEST_SKIP() << "no direct I/O here";
  const Rows table = open(path).value();
  const auto numbers = random_numbers<std::uint64_t>(500, 40'000);
  const auto first = table.gather(numbers, Domain::host()).value();
  EXPECT_TRUE(holds_rows(first.buffer.bytes(), numbers));
  EXPECT_EQ(bytes_by(first.report.reading, Route::direct), 0U) << first.report.reading.reason;
  const auto second = table.gather(numbers, Domain::host()).value();
  EXPECT_TRUE(holds_rows(second.buffer.bytes(), numbers));
  EXPECT_EQ(second.report.cold_rows, 0U);
}

TEST_F(RowsOfTable, a_cold_table_that_does_not_fit_is_not_brought_into_the_cache) {
  const CacheLimit limit(1);
  context_ = make_context();
  const std::string path = make_table("cold", 40'000);
  evict(path);
  const Store store = context_.open(path).value();
  if (!store.info().direct || store.cached_bytes(0, store.info().size_bytes) != 0U) {
    GTEST_SKIP() << "the file can't be kept out of the page cache here";
  }
  const Rows table = open(path).value();
  const auto numbers = random_numbers<std::uint64_t>(500, 40'000);
  const auto gathered = table.gather(numbers, Domain::host()).value();
  EXPECT_TRUE(holds_rows(gathered.buffer.bytes(), numbers));
  EXPECT_EQ(gathered.report.cold_rows, numbers.size());
  EXPECT_LT(store.cached_bytes(0, store.info().size_bytes).value(), store.info().size_bytes / 16);
}

TEST_F(RowsOfTable, a_table_that_is_partly_cached_is_copied_and_read_in_one_call) {
  const std::string path = make_table("half", 40'000);
  evict(path);
  warm(path, 6'000'000);
  const Store store = context_.open(path).value();
  const auto cached = store.cached_bytes(0, store.info().size_bytes);
  if (!cached || *cached < 4'000'000 || *cached > 10'000'000) GTEST_SKIP() << "the page cache has other plans";
  const Rows table = open(path).value();
  const auto numbers = random_numbers<std::uint64_t>(5000, 40'000);
  const auto gathered = table.gather(numbers, Domain::host()).value();
  EXPECT_TRUE(holds_rows(gathered.buffer.bytes(), numbers));
  EXPECT_GT(gathered.report.cached_rows, 1000U);
  EXPECT_GT(gathered.report.cold_rows, 1000U);
}

TEST_F(RowsOfTable, neighbours_are_read_together_and_what_lies_between_them_is_reported) {
  const std::string path = make_table();
  const std::vector<std::uint32_t> numbers = {30, 10, 20};
  const Rows apart = open(path, {.mapping = false, .join_bytes = 0}).value();
  const Rows together = open(path, {.mapping = false, .join_bytes = 1 << 16}).value();
  const RowsReport joined = together.gather(numbers, Domain::host()).value().report;
  EXPECT_GE(joined.extra_bytes, 18 * row_bytes);
  EXPECT_EQ(joined.read_bytes, joined.extra_bytes + 3 * row_bytes);
  EXPECT_LE(apart.gather(numbers, Domain::host()).value().report.read_bytes, joined.read_bytes);
}

TEST_F(RowsOfTable, rows_are_read_together_up_to_a_mebibyte_whatever_lies_between_them) {
  const Rows table = open(make_table(), {.mapping = false, .join_bytes = UINT64_MAX}).value();
  const auto read_bytes = [&](const std::vector<std::uint32_t>& numbers) {
    return table.gather(numbers, Domain::host()).value().report.read_bytes;
  };
  EXPECT_GE(read_bytes({0, 3000}), 3000 * row_bytes);
  EXPECT_LT(read_bytes({0, 3000, 6000, 9000}), 9000 * row_bytes);
}

TEST_F(RowsOfTable, what_has_no_room_in_the_scratch_is_read_in_turns) {
  const std::string path = make_table();
  auto numbers = random_numbers<std::int32_t>(3000, table_rows);
  numbers.insert(numbers.begin() + 1000, 500, 7);
  for (const std::uint64_t scratch_bytes : {100'000U, 1'000'000U}) {
    const Rows table = open(path, {.mapping = false, .join_bytes = 0, .scratch_bytes = scratch_bytes}).value();
    const auto gathered = table.gather(numbers, Domain::host()).value();
    EXPECT_TRUE(holds_rows(gathered.buffer.bytes(), numbers)) << scratch_bytes;
    EXPECT_EQ(gathered.report.cold_rows, 3500U);
  }
}

TEST_F(RowsOfTable, a_scratch_that_has_no_room_for_a_row_takes_one_at_a_time) {
  const Rows table = open(make_table(), {.mapping = false, .join_bytes = 0, .scratch_bytes = 1}).value();
  const auto numbers = random_numbers<std::int32_t>(50, table_rows);
  EXPECT_TRUE(holds_rows(table.gather(numbers, Domain::host()).value().buffer.bytes(), numbers));
}

template <typename Number>
void gather_and_compare(const Rows& table, std::uint64_t below) {
  std::vector<Number> numbers(100);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<Number>(i * 7 % below);
  const auto gathered = table.gather(numbers, Domain::host()).value();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto row = gathered.buffer.bytes().subspan(i * row_bytes, row_bytes);
    EXPECT_TRUE(holds_content(row, 1, 100 + static_cast<std::uint64_t>(numbers[i]) * row_bytes));
  }
}

TEST_F(RowsOfTable, numbers_are_integers_of_any_type) {
  const Rows table = open(make_table()).value();
  gather_and_compare<std::int8_t>(table, 127);
  gather_and_compare<std::uint8_t>(table, 255);
  gather_and_compare<std::int16_t>(table, table_rows);
  gather_and_compare<std::uint16_t>(table, table_rows);
  gather_and_compare<std::int32_t>(table, table_rows);
  gather_and_compare<std::uint32_t>(table, table_rows);
  gather_and_compare<std::int64_t>(table, table_rows);
  gather_and_compare<std::uint64_t>(table, table_rows);
  gather_and_compare<long long>(table, table_rows);
}

TEST_F(RowsOfTable, a_number_that_is_no_rows_is_named_with_its_position_and_nothing_is_written) {
  const Rows table = open(make_table()).value();
  std::vector<std::byte> memory(3 * row_bytes, std::byte{0xab});
  const auto refused = [&](const RowNumbers& numbers, const std::string& number) {
    const RowsReport report = table.gather(numbers, Region::host(memory.data(), memory.size()));
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error->code, Code::out_of_range);
    EXPECT_NE(report.error->message.find("the number " + number + " at position 2"), std::string::npos)
        << report.error->message;
    EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte byte) { return byte == std::byte{0xab}; }));
  };
  refused(std::vector<std::int64_t>{0, 1, -1}, "-1");
  refused(std::vector<std::int8_t>{0, 1, -128}, "-128");
  refused(std::vector<std::int32_t>{0, 1, static_cast<std::int32_t>(table_rows)}, "20000");
  refused(std::vector<std::uint64_t>{0, 1, UINT64_MAX}, "18446744073709551615");
  refused(std::vector<std::int64_t>{0, 1, INT64_MIN}, "-9223372036854775808");
  refused(std::vector<std::uint32_t>{0, 1, UINT32_MAX}, "4294967295");
}

TEST_F(RowsOfTable, asked_so_such_a_number_gives_a_row_of_zeros) {
  const std::string path = make_table();
  for (const bool mapping : {true, false}) {
    const Rows table = open(path, {.mapping = mapping}).value();
    const std::vector<std::int64_t> numbers = {5, -1, 6, static_cast<std::int64_t>(table_rows), 5};
    const auto gathered = table.gather(numbers, Domain::host(), {.zeros_for_missing = true}).value();
    EXPECT_EQ(gathered.report.missing_rows, 2U);
    const auto bytes = gathered.buffer.bytes();
    const auto row = [&](std::size_t i) { return bytes.subspan(i * row_bytes, row_bytes); };
    for (const std::size_t i : {1U, 3U}) {
      EXPECT_TRUE(std::ranges::all_of(row(i), [](std::byte byte) { return byte == std::byte{0}; }));
    }
    EXPECT_TRUE(holds_content(row(0), 1, offset + 5 * row_bytes));
    EXPECT_TRUE(holds_content(row(2), 1, offset + 6 * row_bytes));
    EXPECT_TRUE(holds_content(row(4), 1, offset + 5 * row_bytes));
  }
}

TEST_F(RowsOfTable, no_numbers_are_no_rows) {
  const Rows table = open(make_table()).value();
  const auto gathered = table.gather(std::vector<std::int32_t>(), Domain::host());
  ASSERT_TRUE(gathered.ok()) << gathered.error().message;
  EXPECT_EQ(gathered->buffer.size_bytes(), 0U);
  EXPECT_TRUE(table.rows(table_rows, 0, Region::host(nullptr, 0)).ok());
  EXPECT_EQ(table.prefetch(std::vector<std::int32_t>()).value(), 0U);
}

TEST_F(RowsOfTable, rows_that_follow_each_other_come_into_new_memory) {
  const Rows table = open(make_table()).value();
  const auto some = table.rows(7, 1000, Domain::host());
  ASSERT_TRUE(some.ok()) << some.error().message;
  EXPECT_EQ(some->buffer.size_bytes(), 1000 * row_bytes);
  EXPECT_EQ(some->report.bytes, 1000 * row_bytes);
  EXPECT_TRUE(holds_content(some->buffer.bytes(), 1, offset + 7 * row_bytes));
  EXPECT_EQ(table.rows(table_rows, 0, Domain::host()).value().buffer.size_bytes(), 0U);
  EXPECT_EQ(table.rows(table_rows - 1, 2, Domain::host()).error().code, Code::out_of_range);
  EXPECT_EQ(table.rows(1, UINT64_MAX, Domain::host()).error().code, Code::out_of_range);
  EXPECT_EQ(Rows().rows(0, 1, Domain::host()).error().code, Code::invalid_argument);
}

TEST_F(RowsOfTable, memory_and_numbers_must_fit) {
  const Rows table = open(make_table()).value();
  std::vector<std::byte> memory(2 * row_bytes);
  const std::vector<std::int32_t> numbers = {1, 2};
  const auto code = [&](const RowNumbers& asked, Region given) { return table.gather(asked, given).error->code; };
  EXPECT_EQ(code(numbers, Region::host(memory.data(), memory.size() - 1)), Code::invalid_argument);
  EXPECT_EQ(code(numbers, Region::host(nullptr, memory.size())), Code::invalid_argument);
  alignas(8) std::array<std::byte, 16> raw{};
  const auto error = [&](Region numbers_of_4) {
    return *table.gather({RowNumbers::Type::i32, numbers_of_4}, Region::host(memory.data(), memory.size())).error;
  };
  const Error misaligned = error(Region::host(raw.data() + 1, 8));
  EXPECT_EQ(misaligned.code, Code::invalid_argument);
  EXPECT_EQ(misaligned.message, "numbers of rows: their address is no multiple of their size, 4 bytes");
  EXPECT_EQ(misaligned.hint, "align them to 4 bytes, as an array of their type is");
  EXPECT_EQ(error(Region::host(raw.data(), 7)).message, "numbers of rows: 7 bytes are no whole numbers of 4 bytes");
  EXPECT_EQ(error(Region::host(nullptr, 8)).message, "numbers of rows: their memory is null");
  EXPECT_EQ(Rows().gather(numbers, Domain::host()).error().code, Code::invalid_argument);
}

TEST_F(RowsOfTable, are_not_written_over_their_numbers) {
  const Rows table = open(make_table()).value();
  std::vector<std::int64_t> memory(50 * row_bytes / sizeof(std::int64_t));
  const std::span numbers = std::span(memory).first(50);
  std::ranges::copy(random_numbers<std::int64_t>(50, table_rows), numbers.begin());
  const auto before = memory;
  const RowsReport report = table.gather(numbers, Region::host(memory.data(), 50 * row_bytes));
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::invalid_argument) << report.error->message;
  EXPECT_EQ(memory, before);
}

// The gather may notice, or not; what matters is that it returns.
TEST_F(RowsOfTable, whose_numbers_change_meanwhile_are_gathered_or_refused) {
  if (under_thread_sanitizer) GTEST_SKIP() << "it is a race of the caller's";
  for (const bool mapping : {true, false}) {
    const Rows table = open(make_table(), {.mapping = mapping, .scratch_bytes = 100'000}).value();
    std::vector<std::int64_t> numbers = random_numbers<std::int64_t>(3000, table_rows);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      for (std::int64_t i = 0; !stop; ++i) {
        std::atomic_ref(numbers[static_cast<std::size_t>(i % 3000)]).store(i % 2 == 0 ? INT64_MAX / 2 : i % table_rows);
      }
    });
    std::vector<std::byte> memory(3000 * row_bytes);
    for (int i = 0; i < 100; ++i) {
      const RowsReport report = table.gather(numbers, Region::host(memory.data(), memory.size()));
      if (report.ok()) continue;
      EXPECT_TRUE(report.error->code == Code::invalid_argument || report.error->code == Code::out_of_range)
          << report.error->message;
    }
    stop = true;
    writer.join();
  }
}

TEST_F(RowsOfTable, rows_in_a_row_are_read_as_ranges) {
  const Rows parts[] = {open(make_table("a")).value(), open(make_table("b")).value()};
  const Rows table = Rows::join(parts).value();
  std::vector<std::byte> memory(100 * row_bytes);
  const Region region = Region::host(memory.data(), memory.size());
  const RowsReport report = table.rows(table_rows - 40, 100, region);
  ASSERT_TRUE(report.ok()) << message_of(report);
  EXPECT_TRUE(holds_content(std::span(memory).first(40 * row_bytes), 1, offset + (table_rows - 40) * row_bytes));
  EXPECT_TRUE(holds_content(std::span(memory).subspan(40 * row_bytes), 1, offset));
  EXPECT_EQ(table.rows(2 * table_rows - 99, 100, region).error->code, Code::out_of_range);
  EXPECT_EQ(table.rows(UINT64_MAX, 100, region).error->code, Code::out_of_range);
  EXPECT_EQ(table.rows(0, 99, region).error->code, Code::invalid_argument);
}

TEST_F(RowsOfTable, rows_in_a_row_that_were_cached_are_counted_as_cached) {
  const std::string path = make_table();
  std::vector<std::byte> memory(1000 * row_bytes);
  const Region region = Region::host(memory.data(), memory.size());
  warm(path);
  const RowsReport cached = open(path).value().rows(100, 1000, region);
  ASSERT_TRUE(cached.ok()) << message_of(cached);
  if (bytes_by(cached.reading, Route::cached) != memory.size()) {
    GTEST_SKIP() << "the page cache does not keep the file, or the kernel does not tell";
  }
  EXPECT_EQ(cached.cached_rows, 1000U);
  EXPECT_EQ(cached.cold_rows, 0U);
  EXPECT_EQ(cached.read_bytes, 0U);
  options_.cache = Cache::bypass;
  Context past_the_cache = make_context();
  const RowsReport cold =
      Rows::open_raw(past_the_cache, path, {.offset = offset, .row_bytes = row_bytes})->rows(100, 1000, region);
  ASSERT_TRUE(cold.ok()) << message_of(cold);
  const std::uint64_t cold_bytes = memory.size() - bytes_by(cold.reading, Route::cached);
  EXPECT_EQ(cold.cold_rows, (cold_bytes + row_bytes - 1) / row_bytes);
  EXPECT_EQ(cold.read_bytes, cold_bytes + cold.extra_bytes);
}

TEST_F(RowsOfTable, rows_with_gaps_between_them_are_found) {
  const std::string path = make_table();
  const Rows table =
      Rows::open_raw(context_, path, {.offset = offset, .row_bytes = row_bytes, .stride_bytes = 3 * row_bytes}).value();
  EXPECT_EQ(table.info().rows, (table_rows + 2) / 3);
  const std::vector<std::uint16_t> numbers = {3, 0};
  const auto gathered = table.gather(numbers, Domain::host()).value();
  EXPECT_TRUE(holds_content(gathered.buffer.bytes().first(row_bytes), 1, offset + 9 * row_bytes));
  std::vector<std::byte> memory(2 * row_bytes);
  ASSERT_TRUE(table.rows(1, 2, Region::host(memory.data(), memory.size())).ok());
  EXPECT_TRUE(holds_content(std::span(memory).subspan(row_bytes), 1, offset + 6 * row_bytes));
}

TEST_F(RowsOfTable, a_store_that_does_not_fit_its_rows_is_refused) {
  const std::string path = make_table();
  const auto code = [&](const RawRows& raw) { return Rows::open_raw(context_, path, raw).error().code; };
  EXPECT_EQ(code({.row_bytes = row_bytes}), Code::invalid_argument) << "the front is no whole row";
  EXPECT_EQ(code({.offset = offset, .row_bytes = 0}), Code::invalid_argument);
  EXPECT_EQ(code({.offset = offset, .row_bytes = 300, .stride_bytes = 200}), Code::invalid_argument);
  EXPECT_EQ(code({.offset = offset, .row_bytes = 300, .count = table_rows + 1}), Code::out_of_range);
  EXPECT_EQ(code({.offset = 1 << 30, .row_bytes = 300}), Code::out_of_range);
  EXPECT_EQ(code({.offset = offset, .row_bytes = UINT64_MAX}), Code::invalid_argument);
}

TEST_F(RowsOfTable, tables_of_other_rows_are_not_joined_and_a_missing_one_is_named) {
  const Rows tables[] = {open(make_table("a")).value(),
                         Rows::open_raw(context_, make_table("b"), {.row_bytes = 100}).value()};
  EXPECT_EQ(Rows::join(tables).error().code, Code::invalid_argument);
  EXPECT_EQ(Rows::join({}).error().code, Code::invalid_argument);
  const auto missing = open(folder_.path("missing"));
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
}

TEST_F(RowsOfTable, a_table_may_be_joined_with_itself) {
  const Rows one = open(make_table()).value();
  const Rows twice[] = {one, one};
  const Rows table = Rows::join(twice).value();
  const std::vector<std::uint32_t> numbers = {table_rows + 3, 3};
  const auto gathered = table.gather(numbers, Domain::host()).value();
  for (const std::size_t i : {0U, 1U}) {
    EXPECT_TRUE(holds_content(gathered.buffer.bytes().subspan(i * row_bytes, row_bytes), 1, offset + 3 * row_bytes));
  }
}

TEST_F(RowsOfTable, tensors_of_several_files_are_one_table) {
  std::vector<Rows> shards;
  for (const std::uint64_t shard : {0U, 1U, 2U}) {
    const std::uint64_t rows = 10 + shard;
    std::vector<std::byte> bytes(rows * 64, static_cast<std::byte>(shard + 1));
    const TensorToSave tensor{"embed", DType::f32, {rows, 4, 4}, Region::host(bytes.data(), bytes.size())};
    const std::string path = folder_.path("shard" + std::to_string(shard) + ".safetensors");
    ASSERT_TRUE(save_safetensors(context_, path, {&tensor, 1}, {.durable = false}).ok());
    shards.push_back(Rows::open_tensor(context_, path, "embed").value());
  }
  const Rows table = Rows::join(shards).value();
  EXPECT_EQ(table.info().rows, 33U);
  EXPECT_EQ(table.info().row_bytes, 64U);
  EXPECT_EQ(table.info().dtype, "F32");
  EXPECT_EQ(table.info().row_shape, (std::vector<std::uint64_t>{4, 4}));
  const std::vector<std::int64_t> numbers = {32, 9, 10, 0, 21, 20};
  const auto gathered = table.gather(numbers, Domain::host()).value();
  const int shard_of[] = {3, 1, 2, 1, 3, 2};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(gathered.buffer.bytes()[i * 64], static_cast<std::byte>(shard_of[i])) << i;
  }
  EXPECT_EQ(Rows::open_tensor(context_, folder_.path("shard0.safetensors"), "other").error().code, Code::not_found);
}

TEST_F(RowsOfTable, a_tensor_whose_rows_end_within_a_byte_is_refused_for_that) {
  std::array<std::byte, 6> bytes{};
  const TensorToSave tensor{"half", DType::f4, {4, 3}, Region::host(bytes.data(), bytes.size())};
  const std::string path = folder_.path("half.safetensors");
  ASSERT_TRUE(save_safetensors(context_, path, {&tensor, 1}, {.durable = false}).ok());
  const Error error = Rows::open_tensor(context_, path, "half").error();
  EXPECT_EQ(error.code, Code::invalid_argument);
  EXPECT_EQ(error.message, path + ": tensor \"half\" has rows that are no whole bytes: its elements are of F4");
  EXPECT_EQ(error.hint, "load the tensor as a whole, or name another");
}

TEST_F(RowsOfTable, a_tensor_without_rows_is_a_table) {
  const TensorToSave tensors[] = {
      {"none", DType::f32, {0, 8}, {}}, {"half", DType::f4, {0, 3}, {}}, {"empty", DType::f32, {3, 0}, {}}};
  const std::string path = folder_.path("model.safetensors");
  ASSERT_TRUE(save_safetensors(context_, path, tensors, {.durable = false}).ok());
  const auto table = Rows::open_tensor(context_, path, "none");
  ASSERT_TRUE(table.ok()) << table.error().message;
  EXPECT_EQ(table->info().rows, 0U);
  EXPECT_EQ(table->info().row_bytes, 32U);
  EXPECT_TRUE(table->gather(std::vector<std::int32_t>{}, Domain::host()).ok());
  EXPECT_EQ(table->gather(std::vector<std::int32_t>{0}, Domain::host()).error().code, Code::out_of_range);
  EXPECT_TRUE(table->rows(0, 0, Region{}).ok());
  const std::vector<Rows> parts = {*table, *table};
  EXPECT_EQ(Rows::join(parts).value().info().rows, 0U);
  EXPECT_FALSE(Rows::open_tensor(context_, path, "half").ok()) << "its rows would end within a byte";
  EXPECT_EQ(Rows::open_tensor(context_, path, "empty").error().code, Code::unsupported);
}

TEST_F(RowsOfTable, arrays_of_numpy_are_tables) {
  std::string file("\x93NUMPY\x01\x00\x76\x00", 10);
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (100, 3), }";
  header.resize(0x75, ' ');
  file += header + "\n";
  for (std::uint32_t i = 0; i < 300; ++i) file += std::string(reinterpret_cast<const char*>(&i), 4);
  std::ofstream(folder_.path("a.npy"), std::ios::binary) << file;
  const Rows table = Rows::open_npy(context_, folder_.path("a.npy")).value();
  EXPECT_EQ(table.info().dtype, "<i4");
  const std::vector<std::uint8_t> numbers = {99, 0};
  const auto gathered = table.gather(numbers, Domain::host()).value();
  std::array<std::uint32_t, 6> got{};
  std::memcpy(got.data(), gathered.buffer.data(), sizeof(got));
  EXPECT_EQ(got, (std::array<std::uint32_t, 6>{297, 298, 299, 0, 1, 2}));
  std::filesystem::resize_file(folder_.path("a.npy"), file.size() - 1);
  EXPECT_EQ(Rows::open_npy(context_, folder_.path("a.npy")).error().code, Code::truncated);
}

TEST_F(RowsOfTable, a_store_that_is_made_has_rows_too) {
  ASSERT_TRUE(context_
                  .add_scheme("made",
                              [&](std::string_view, const OpenOptions&) {
                                return context_.open(Recipe{"made", 100'000, [](std::uint64_t at, auto memory) {
                                                              const auto bytes = content(1, 100 + at, memory.size());
                                                              std::ranges::copy(bytes, memory.begin());
                                                              return Status();
                                                            }});
                              })
                  .ok());
  const Rows table = Rows::open_raw(context_, "made:x", {.row_bytes = row_bytes, .count = 300}).value();
  const auto numbers = random_numbers<std::int32_t>(1000, 300);
  const auto gathered = table.gather(numbers, Domain::host());
  ASSERT_TRUE(gathered.ok()) << gathered.error().message;
  EXPECT_TRUE(holds_rows(gathered->buffer.bytes(), numbers));
}

TEST_F(RowsOfTable, a_file_that_was_modified_truncated_or_replaced_is_an_error) {
  const auto numbers = random_numbers<std::int32_t>(100, table_rows);
  const auto code_after = [&](auto change, bool mapping) {
    const std::string path = make_table("victim");
    warm(path);
    const Rows table = open(path, {.mapping = mapping}).value();
    EXPECT_TRUE(table.gather(numbers, Domain::host()).ok());
    change(path);
    const auto gathered = table.gather(numbers, Domain::host());
    std::vector<std::byte> memory(10 * row_bytes);
    EXPECT_FALSE(table.rows(10, 10, Region::host(memory.data(), memory.size())).ok()) << "nor rows in a row";
    return gathered ? Code::ok : gathered.error().code;
  };
  for (const bool mapping : {true, false}) {
    EXPECT_EQ(code_after([](const std::string& path) { std::filesystem::resize_file(path, 5000); }, mapping),
              Code::truncated);
    // Cut within a page, it reads as zeros without a signal.
    EXPECT_NE(
        code_after(
            [&](const std::string& path) { std::filesystem::resize_file(path, offset + table_rows * row_bytes - 1); },
            mapping),
        Code::ok);
    EXPECT_EQ(code_after(
                  [](const std::string& path) {
                    std::filesystem::last_write_time(
                        path, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
                  },
                  mapping),
              Code::changed);
    EXPECT_EQ(code_after([&](const std::string& path) { std::filesystem::rename(make_table("other"), path); }, mapping),
              Code::changed);
    EXPECT_EQ(code_after([](const std::string& path) { std::filesystem::remove(path); }, mapping), Code::changed);
  }
}

TEST_F(RowsOfTable, a_file_that_is_truncated_again_and_again_never_ends_the_process) {
  const std::string path = make_table("flickering");
  const std::uint64_t whole = offset + table_rows * row_bytes;
  warm(path);
  std::atomic<bool> over{false};
  std::vector<std::thread> gatherers;
  std::atomic<int> failures{0};
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    gatherers.emplace_back([&, seed] {
      const auto numbers = random_numbers<std::int32_t>(2000, table_rows, seed);
      while (!over) {
        const auto table = open(path);
        if (!table) continue;  // it was short at that moment
        for (int i = 0; i < 5; ++i) {
          const auto gathered = table->gather(numbers, Domain::host());
          if (gathered) continue;
          ++failures;
          const Code code = gathered.error().code;
          EXPECT_TRUE(code == Code::truncated || code == Code::changed || code == Code::out_of_range)
              << gathered.error().message;
        }
      }
    });
  }
  EXPECT_TRUE(eventually([&] {
    std::filesystem::resize_file(path, 8192);
    std::filesystem::resize_file(path, whole);
    return failures >= 20;
  }));
  over = true;
  for (std::thread& thread : gatherers) thread.join();
}

TEST_F(RowsOfTable, many_threads_gather_at_once) {
  const std::string path = make_table();
  evict(path);
  warm(path, 3'000'000);
  const Rows table = open(path, {.look_again_seconds = 0}).value();
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      for (std::uint64_t i = 0; i < 10; ++i) {
        const auto numbers = random_numbers<std::int32_t>(1000, table_rows, seed * 100 + i);
        const auto gathered = table.gather(numbers, Domain::host());
        ASSERT_TRUE(gathered.ok()) << gathered.error().message;
        EXPECT_TRUE(holds_rows(gathered->buffer.bytes(), numbers));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(RowsOfTable, prefetch_starts_bringing_rows_into_the_cache) {
  const std::string path = make_table();
  evict(path);
  const Rows table = open(path, {.look_again_seconds = 0}).value();
  const auto numbers = random_numbers<std::int32_t>(10, table_rows);
  const auto started = table.prefetch(numbers);
  ASSERT_TRUE(started.ok()) << started.error().message;
  EXPECT_TRUE(eventually([&] { return table.gather(numbers, Domain::host()).value().report.cold_rows == 0; }) ||
              !context_.open(path).value().cached_bytes(0, 1));
  EXPECT_EQ(table.prefetch(std::vector<std::int32_t>{-1}).error().code, Code::out_of_range);
  std::filesystem::resize_file(path, 4096);
  EXPECT_EQ(table.prefetch(numbers).error().code, Code::truncated);
}

TEST_F(RowsOfTable, a_deadline_that_has_passed_is_told_in_rows) {
  const std::string path = make_table();
  const auto numbers = random_numbers<std::int32_t>(5000, table_rows);
  std::vector<std::byte> memory(numbers.size() * row_bytes);
  const Region region = Region::host(memory.data(), memory.size());
  for (const bool mapping : {true, false}) {
    warm(path);
    const Rows table = open(path, {.mapping = mapping}).value();
    for (const RowsReport& report : {table.gather(numbers, region, {.deadline_seconds = -1}),
                                     table.rows(0, numbers.size(), region, {.deadline_seconds = -1})}) {
      ASSERT_TRUE(report.error);
      EXPECT_EQ(report.error->code, Code::timed_out);
      EXPECT_EQ(report.error->message, "the deadline passed; about 0 of 5000 rows of " + path + " were there");
      EXPECT_FALSE(report.error->hint.empty());
    }
  }
}

TEST_F(RowsOfTable, are_not_gathered_inside_a_callback) {
  const std::string path = make_table();
  const Store store = context_.open(path).value();
  const auto numbers = random_numbers<std::int32_t>(1000, table_rows);
  std::vector<std::byte> memory(numbers.size() * row_bytes);
  const Region region = Region::host(memory.data(), memory.size());
  const GatherOptions watched{.keep_going = [] { return true; }};
  for (const bool mapping : {true, false}) {
    const Rows table = open(path, {.mapping = mapping}).value();
    std::vector<Error> errors;
    const auto gather = [&](const Report&) {
      for (const GatherOptions& options : {GatherOptions{}, watched}) {
        errors.push_back(table.gather(numbers, region, options).error.value_or(Error{}));
        errors.push_back(table.rows(0, numbers.size(), region, options).error.value_or(Error{}));
      }
    };
    std::array<std::byte, 1> byte{};
    std::atomic<bool> has_run = false;
    const Ticket ticket =
        submit_read(context_, store, Region::host(byte.data(), 1), {.on_end = [&](const Report& report) {
                      gather(report);
                      has_run = true;
                    }});
    ASSERT_TRUE(eventually([&] { return has_run.load(); }));
    ASSERT_EQ(errors.size(), 4U);
    for (const Error& error : errors) {
      EXPECT_EQ(error.code, Code::would_deadlock) << error.message;
      EXPECT_EQ(error.hint, "gather on a thread of your own");
    }
  }
}

TEST_F(RowsOfTable, in_a_forked_child_calls_fail) {
  if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
  const Rows table = open(make_table()).value();
  const auto numbers = random_numbers<std::int32_t>(100, table_rows);
  std::vector<std::byte> memory(numbers.size() * row_bytes);
  const Region region = Region::host(memory.data(), memory.size());
  ASSERT_TRUE(table.gather(numbers, region).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const bool closed = table.gather(numbers, region).error->code == Code::closed &&
                        table.rows(0, 100, region).error->code == Code::closed &&
                        table.prefetch(numbers).error().code == Code::closed;
    ::_exit(closed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(table.gather(numbers, region).ok());
}

}  // namespace
}  // namespace penstock::test
