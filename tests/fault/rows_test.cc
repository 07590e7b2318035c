// Random gathers over an engine that misbehaves, driven from a seed: every gather ends, and what it says is done has
// the right bytes.
//
// PENSTOCK_GATHERS=N sets how many; PENSTOCK_SEED=N the seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/environment.h"
#include "support/faulty_context.h"
#include "support/support.h"

namespace penstock::test {
namespace {

struct RandomTable {
  std::string path;
  std::uint64_t seed = 0;
  RawRows raw;
};

// One table of up to three stores, some of them partly in the page cache.
class RowsRun {
 public:
  explicit RowsRun(std::uint64_t seed) : random_(seed), context_(faulty_context(seed, 1)) {}

  void go(std::uint64_t gathers) {
    constexpr std::uint64_t gathers_of_a_table = 50;
    for (std::uint64_t i = 0; i < gathers && !testing::Test::HasFailure(); ++i) {
      if (i % gathers_of_a_table == 0) make_table();
      gather();
    }
    EXPECT_GT(done_, gathers / 4);
  }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  void make_table() {
    constexpr std::array sizes = {1U, 7U, 64U, 256U, 1000U, 4096U, 5000U};
    row_bytes_ = sizes[below(sizes.size())];
    joined_ = Rows();
    parts_.clear();
    std::vector<Rows> tables;
    const RowsOptions options{.mapping = below(5) != 0,
                              .look_again_seconds = below(2) == 0 ? 0.0 : 1.0,
                              .join_bytes = below(3) * 3000,
                              .scratch_bytes = below(2) == 0 ? 256U << 20 : 20'000U};
    while (tables.size() <= below(3)) {
      RandomTable part{.path = folder_.path("table" + std::to_string(tables.size())), .seed = random_()};
      part.raw = {.offset = below(3) * 777, .row_bytes = row_bytes_, .stride_bytes = row_bytes_ + below(2) * below(99)};
      part.raw.count = 1 + below(300'000 / row_bytes_);
      const std::uint64_t bytes = part.raw.offset + part.raw.count * part.raw.stride_bytes;
      write_file(part.path, content(part.seed, 0, bytes));
      if (below(2) == 0) evict(part.path);
      if (below(2) == 0) warm(part.path, below(bytes));
      auto table = Rows::open_raw(context_, part.path, part.raw, options);
      ASSERT_TRUE(table.ok()) << table.error().message;
      tables.push_back(*table);
      parts_.push_back(part);
    }
    joined_ = Rows::join(tables).value();
  }

  void gather() {
    const std::uint64_t rows = joined_.info().rows;
    std::vector<std::int64_t> numbers(below(4) == 0 ? below(500) : below(20));
    const std::uint64_t among = below(3) == 0 ? std::min<std::uint64_t>(rows, 4) : rows;
    const bool with_missing = below(5) == 0;
    for (std::int64_t& number : numbers) {
      number = static_cast<std::int64_t>(below(among));
      if (with_missing && below(4) == 0) number = below(2) == 0 ? -1 : static_cast<std::int64_t>(rows + below(9));
    }
    const GuardedMemory memory(std::max<std::size_t>(numbers.size() * row_bytes_, 1));
    const Region region = memory.region().part(0, numbers.size() * row_bytes_);
    const RowsReport report = joined_.gather(numbers, region, {.zeros_for_missing = with_missing});
    if (!report.ok()) {
      EXPECT_EQ(report.error->code, Code::io_error) << report.error->message;
      return;
    }
    ++done_;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_TRUE(is_row(memory.bytes().subspan(i * row_bytes_, row_bytes_), numbers[i])) << "row " << numbers[i];
    }
  }

  bool is_row(std::span<const std::byte> bytes, std::int64_t number) const {
    auto row = static_cast<std::uint64_t>(number);
    for (const RandomTable& part : parts_) {
      if (row < part.raw.count) {
        return same_bytes(bytes, content(part.seed, part.raw.offset + row * part.raw.stride_bytes, bytes.size()));
      }
      row -= part.raw.count;
    }
    return all_are(bytes, std::byte{0});
  }

  std::mt19937_64 random_;
  TemporaryFolder folder_;
  Context context_;
  std::vector<RandomTable> parts_;
  Rows joined_;
  std::uint64_t row_bytes_ = 0;
  std::uint64_t done_ = 0;
};

TEST(RowsSeeded, what_is_done_has_the_right_bytes) {
  const std::uint64_t seed = from_environment("PENSTOCK_SEED", 1);
  RowsRun run(seed);
  run.go(from_environment("PENSTOCK_GATHERS", under_thread_sanitizer ? 100 : 500));
  if (testing::Test::HasFailure()) std::printf("PENSTOCK_SEED=%llu\n", static_cast<unsigned long long>(seed));
}

TEST(RowsOfABadDisk, that_can_not_be_read_are_named_by_the_file_whether_they_have_neighbours_or_not) {
  const TemporaryFolder folder;
  const std::string path = folder.path("table");
  write_file(path, content(1, 0, 1 << 20));
  Context context = faulty_context(1, 900);
  const Rows table = Rows::open_raw(context, path, {.row_bytes = 256}, {.mapping = false}).value();
  for (const std::vector<std::int64_t>& numbers : {std::vector<std::int64_t>(100, 7), {0, 100, 200, 300, 400}}) {
    const auto gathered = table.gather(numbers, Domain::host());
    ASSERT_FALSE(gathered.ok());
    EXPECT_EQ(gathered.error().code, Code::io_error);
    EXPECT_NE(gathered.error().message.find(path), std::string::npos) << gathered.error().message;
  }
}

}  // namespace
}  // namespace penstock::test
