// Cold rows of tables: those without neighbours are read to their places, all others through the scratch.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "api/context_builder.h"
#include "engines/made/engine.h"
#include "integration/context_fixture.h"
#include "support/cache_limit.h"
#include "support/gated_engine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

constexpr std::uint64_t no_row = UINT64_MAX;

// Of two files, whose first bytes are something else, and which end with their last rows.
struct Shape {
  std::uint64_t row_bytes = 0;
  std::uint64_t stride_bytes = 0;
  std::uint64_t offset = 0;

  static constexpr std::uint64_t groups = 40;  // of rows, in each file
  static constexpr std::uint64_t apart_bytes = 32 << 10;
  std::uint64_t step() const { return apart_bytes / stride_bytes + 3; }  // from group to group
  std::uint64_t rows() const { return groups * step() + 1; }             // of a file
  std::uint64_t bytes() const { return offset + (rows() - 1) * stride_bytes + row_bytes; }
};

struct Expected {
  std::vector<std::uint64_t> numbers;
  std::uint64_t lone_rows = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t wanted_bytes = 0;
};

class ColdRowsOfTable : public ContextTest, public testing::WithParamInterface<Shape> {
 protected:
  // Rows of a table that fits are cold once.
  const CacheLimit limit_{1};
  Rows open(const RowsOptions& options) {
    std::vector<Rows> tables;
    for (const std::uint64_t file : {0U, 1U}) {
      const std::string path = path_of(file);
      write_file(path, content(file, 0, shape_.bytes()));
      evict(path);
      tables.push_back(Rows::open_raw(context_, path,
                                      {.offset = shape_.offset,
                                       .row_bytes = shape_.row_bytes,
                                       .stride_bytes = shape_.stride_bytes,
                                       .count = shape_.rows()},
                                      options)
                           .value());
    }
    return Rows::join(tables).value();
  }
  std::string path_of(std::uint64_t file) const { return folder_.path("table" + std::to_string(file)); }

  // In each file some rows that are alone, some with a neighbour, some twice; the last ends with the file.
  void ask(std::uint64_t file, Expected& expected) {
    const StoreInfo info = context_.open(path_of(file)).value().info();
    const std::uint64_t block = info.direct ? info.alignments.offset : 1;
    for (std::uint64_t group = 0; group <= Shape::groups; ++group) {
      const std::uint64_t row = group * shape_.step();
      const bool is_joined = group % 4 == 1;
      const bool is_twice = group % 4 == 2;
      const std::uint64_t last = is_joined ? row + 1 : row;
      const std::uint64_t first_row = file * shape_.rows();
      expected.numbers.push_back(first_row + row);
      if (is_joined || is_twice) expected.numbers.push_back(first_row + last);
      expected.lone_rows += is_joined || is_twice ? 0 : 1;
      const std::uint64_t begin = (shape_.offset + row * shape_.stride_bytes) / block * block;
      const std::uint64_t end = shape_.offset + last * shape_.stride_bytes + shape_.row_bytes;
      expected.read_bytes += std::min(shape_.bytes(), (end + block - 1) / block * block) - begin;
      expected.wanted_bytes += (is_joined ? 2 : 1) * shape_.row_bytes;
    }
  }
  // Zeros may have gone to places of cold rows, before the rows did.
  void expect_filled_about_once(const RowsReport& report, std::uint64_t lone_rows, std::uint64_t bytes) const {
    EXPECT_GE(report.filling.bytes, bytes - lone_rows * shape_.row_bytes);
    EXPECT_LE(report.filling.bytes, bytes + (report.cold_rows - lone_rows) * shape_.row_bytes);
  }
  static void shuffle_with_missing(Expected& expected) {
    expected.numbers.insert(expected.numbers.end(), 7, no_row);
    std::ranges::shuffle(expected.numbers, std::mt19937_64(3));
  }
  testing::AssertionResult holds_rows(std::span<const std::byte> bytes, const std::vector<std::uint64_t>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto row = bytes.subspan(i * shape_.row_bytes, shape_.row_bytes);
      if (numbers[i] == no_row) {
        if (!all_are(row, std::byte{0})) return testing::AssertionFailure() << "row " << i << " is no zeros";
        continue;
      }
      const std::uint64_t file = numbers[i] / shape_.rows();
      const std::uint64_t in_file = numbers[i] % shape_.rows();
      const auto held = holds_content(row, file, shape_.offset + in_file * shape_.stride_bytes);
      if (!held) return testing::AssertionFailure() << "row " << i << ": " << held.message();
    }
    return testing::AssertionSuccess();
  }

  const Shape shape_ = GetParam();
  Context context_ = make_context();
};

INSTANTIATE_TEST_SUITE_P(Of, ColdRowsOfTable,
                         testing::Values(Shape{256, 256, 0}, Shape{4096, 4096, 0}, Shape{4096, 4096, 100},
                                         Shape{5000, 5037, 77}, Shape{512, 700, 4096}, Shape{65536, 65536, 0},
                                         Shape{100'000, 100'001, 3}),
                         [](const auto& instance) {
                           return "rows_of_" + std::to_string(instance.param.row_bytes) + "_from_" +
                                  std::to_string(instance.param.offset);
                         });

TEST_P(ColdRowsOfTable, are_read_to_their_places_where_they_are_alone_and_each_byte_counts_once) {
  const Rows table = open({.mapping = false});
  Expected expected;
  for (const std::uint64_t file : {0U, 1U}) ask(file, expected);
  shuffle_with_missing(expected);
  const std::uint64_t bytes = expected.numbers.size() * shape_.row_bytes;
  const GuardedMemory odd(bytes + 1);
  const Buffer aligned = context_.allocate(Domain::host(), bytes).value();
  for (const Region& memory : {odd.region().part(0, bytes), aligned.region()}) {
    std::fill_n(memory.data, bytes, std::byte{0xa5});
    const RowsReport report = table.gather(expected.numbers, memory, {.zeros_for_missing = true});
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_rows({memory.data, bytes}, expected.numbers));
    EXPECT_EQ(report.missing_rows, 7U);
    EXPECT_EQ(report.cold_rows, expected.numbers.size() - 7);
    EXPECT_EQ(report.read_bytes, expected.read_bytes);
    EXPECT_EQ(report.extra_bytes, expected.read_bytes - expected.wanted_bytes);
    expect_filled_about_once(report, expected.lone_rows, bytes);
    EXPECT_EQ(report.reading.bytes + report.reading.extra_bytes, expected.read_bytes);
  }
}

TEST_P(ColdRowsOfTable, lie_between_those_that_were_cached) {
  const Rows table = open({});
  warm(path_of(0));
  const auto cached_bytes = [&](std::uint64_t file) {
    return context_.open(path_of(file)).value().cached_bytes(0, shape_.bytes());
  };
  if (cached_bytes(0) != shape_.bytes() || cached_bytes(1) != 0U) {
    GTEST_SKIP() << "the page cache has other plans, or the kernel does not tell";
  }
  Expected expected;
  ask(1, expected);
  const std::size_t cold_rows = expected.numbers.size();
  Expected cached;
  ask(0, cached);
  expected.numbers.insert(expected.numbers.end(), cached.numbers.begin(), cached.numbers.end());
  shuffle_with_missing(expected);
  const GuardedMemory memory(expected.numbers.size() * shape_.row_bytes);
  const RowsReport report = table.gather(expected.numbers, memory.region(), {.zeros_for_missing = true});
  ASSERT_TRUE(report.ok()) << report.error->message;
  EXPECT_TRUE(holds_rows(memory.bytes(), expected.numbers));
  EXPECT_EQ(report.cold_rows, cold_rows);
  EXPECT_EQ(report.cached_rows, cached.numbers.size());
  EXPECT_EQ(report.read_bytes, expected.read_bytes);
  EXPECT_EQ(report.extra_bytes, expected.read_bytes - expected.wanted_bytes);
  expect_filled_about_once(report, expected.lone_rows, memory.bytes().size());
}

TEST_P(ColdRowsOfTable, need_no_copies_where_all_are_alone) {
  const Rows table = open({.mapping = false, .scratch_bytes = 1});
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t row = 0; row < 2 * shape_.rows(); row += shape_.step()) numbers.push_back(row);
  const auto gathered = table.gather(numbers, Domain::host()).value();
  EXPECT_TRUE(holds_rows(gathered.buffer.bytes(), numbers));
  EXPECT_EQ(gathered.report.filling.outcome, Outcome::pending) << "there was nothing to copy";
  EXPECT_EQ(gathered.report.reading.bytes, gathered.buffer.size_bytes());
}

TEST_P(ColdRowsOfTable, of_a_file_that_was_cut_off_are_an_error) {
  const Rows table = open({.mapping = false});
  std::filesystem::resize_file(path_of(1), shape_.bytes() - 1);
  const auto gathered = table.gather(std::vector<std::uint64_t>{0, 2 * shape_.rows() - 1}, Domain::host());
  ASSERT_FALSE(gathered.ok());
  EXPECT_EQ(gathered.error().code, Code::truncated) << gathered.error().message;
}

// Rows of 8 bytes that a function makes: many operations in no time.
class ManyColdRows : public ContextTest {
 protected:
  static constexpr std::size_t row_bytes = 8;
  static constexpr std::uint64_t rows = 250'000;

  Rows open(const RowsOptions& options) {
    EXPECT_TRUE(context_
                    .add_scheme("made",
                                [this](std::string_view, const OpenOptions&) {
                                  return context_.open(Recipe{
                                      "made", bytes_.size(), [this](std::uint64_t at, std::span<std::byte> memory) {
                                        std::ranges::copy(std::span(bytes_).subspan(at, memory.size()), memory.begin());
                                        return Status();
                                      }});
                                })
                    .ok());
    return Rows::open_raw(context_, "made:x", {.row_bytes = row_bytes}, options).value();
  }
  void expect_rows(const Rows& table, const std::vector<std::uint64_t>& numbers, std::uint64_t different) {
    const auto gathered = table.gather(numbers, Domain::host());
    ASSERT_TRUE(gathered.ok()) << gathered.error().message;
    std::vector<std::byte> wanted;
    for (const std::uint64_t number : numbers) {
      const auto row = std::span(bytes_).subspan(number * row_bytes, row_bytes);
      wanted.insert(wanted.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(same_bytes(gathered->buffer.bytes(), wanted));
    EXPECT_GE(gathered->report.read_bytes, different * row_bytes);
    EXPECT_LE(gathered->report.read_bytes, numbers.size() * row_bytes);
    EXPECT_EQ(gathered->report.extra_bytes, 0U);
  }

  const std::vector<std::byte> bytes_ = content(1, 0, rows* row_bytes);
  Context context_ = make_context();
};

TEST_F(ManyColdRows, come_in_turns) {
  const Rows table = open({.join_bytes = 0});
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t row = 0; row < rows; row += 2) numbers.push_back(row);
  for (std::uint64_t row = 0; row < 5000; ++row) numbers.push_back(row);
  std::ranges::shuffle(numbers, std::mt19937_64(5));
  expect_rows(table, numbers, rows / 2 + 2500);
}

TEST_F(ManyColdRows, come_in_turns_where_the_scratch_has_little_room_for_those_that_have_neighbours) {
  const Rows table = open({.join_bytes = 0, .scratch_bytes = 20'000});
  std::vector<std::uint64_t> numbers(20'000);
  std::mt19937_64 random(7);
  for (std::uint64_t& number : numbers) number = random() % 10'000;
  const std::uint64_t different = std::set<std::uint64_t>(numbers.begin(), numbers.end()).size();
  expect_rows(table, numbers, different);
}

// More than are filled at once (256 MiB), some of them in the middle of rows that are none.
TEST_F(ManyColdRows, are_read_when_what_lies_around_them_has_been_filled) {
  constexpr std::size_t long_row_bytes = 1 << 20, long_rows = 40, asked = 300;
  const std::vector<std::byte> bytes = content(2, 0, long_rows * long_row_bytes);
  const auto make = [&](std::uint64_t at, std::span<std::byte> memory) {
    std::ranges::copy(std::span(bytes).subspan(at, memory.size()), memory.begin());
    return Status();
  };
  const auto open = [&](std::string_view, const OpenOptions&) {
    return context_.open(Recipe{"long", bytes.size(), make});
  };
  ASSERT_TRUE(context_.add_scheme("long", open).ok());
  const Rows table = Rows::open_raw(context_, "long:x", {.row_bytes = long_row_bytes}, {.join_bytes = 0}).value();
  std::vector<std::uint64_t> numbers(asked, no_row);
  for (std::size_t i = 0; i < long_rows / 2; ++i) numbers[i * asked * 2 / long_rows + i % 3] = i * 2;
  const GuardedMemory memory(asked * long_row_bytes);
  const RowsReport report = table.gather(numbers, memory.region(), {.zeros_for_missing = true});
  ASSERT_TRUE(report.ok()) << report.error->message;
  for (std::size_t i = 0; i < asked; ++i) {
    const auto row = memory.bytes().subspan(i * long_row_bytes, long_row_bytes);
    const bool is_right =
        numbers[i] == no_row ? all_are(row, std::byte{0}) : bool(holds_content(row, 2, numbers[i] * long_row_bytes));
    EXPECT_TRUE(is_right) << i;
  }
}

// Long rows on two disks that answer when the test lets them.
class ColdRowsOnDisks : public testing::Test {
 protected:
  // So long that what core has in flight to one disk leaves places for the other.
  static constexpr std::uint64_t row_bytes = 128 << 10;
  static constexpr std::uint64_t rows = 4500;  // of a disk
  static constexpr std::size_t in_several_turns = rows / 2;

  explicit ColdRowsOnDisks(const Deadlines& deadlines = patient)
      : context_(make_context(first_, second_, deadlines)),
        memory_(::mmap(nullptr, rows * row_bytes, PROT_READ | PROT_WRITE, flags, -1, 0)) {
    EXPECT_NE(memory_, MAP_FAILED);
    std::vector<Rows> tables;
    for (const char* name : {"first", "second"}) {
      const std::string path = folder_.path(name);
      EXPECT_TRUE(write_sparse_file(path, rows * row_bytes));
      tables.push_back(Rows::open_raw(context_, path, {.row_bytes = row_bytes}, {.join_bytes = 0}).value());
    }
    table_ = Rows::join(tables).value();
  }
  ~ColdRowsOnDisks() override {
    first_->open();
    second_->open();
    EXPECT_TRUE(eventually([&] { return context_.statistics().quarantined_bytes == 0; }));
    ::munmap(memory_, rows * row_bytes);
  }

  // Of one disk, all of them alone.
  static std::vector<std::uint64_t> every_other(std::uint64_t disk, std::size_t count) {
    std::vector<std::uint64_t> numbers(count);
    for (std::size_t i = 0; i < count; ++i) numbers[i] = disk * rows + 2 * i;
    return numbers;
  }
  RowsReport gather(const std::vector<std::uint64_t>& numbers, const GatherOptions& options) {
    const Region memory = Region::host(static_cast<std::byte*>(memory_), numbers.size() * row_bytes);
    return table_.gather(numbers, memory, options);
  }
  // The first turn has about five hundred rows, all of them of the second disk. The next one begins with the first
  // disk.
  RowsReport gather_from_both_while_the_second_fails() {
    auto numbers = every_other(1, in_several_turns - 20);
    const auto others = every_other(0, 20);
    numbers.insert(numbers.begin() + 600, others.begin(), others.end());
    second_->close();
    std::thread failing([&] {
      EXPECT_TRUE(eventually([&] { return first_->counts().in_flight != 0; }));
      second_->fail();
    });
    const RowsReport report = gather(numbers, {});
    failing.join();
    return report;
  }
  static void expect_silence(Gate& gate) {
    const Gate::Counts at_return = gate.counts();
    EXPECT_EQ(at_return.in_flight, 0U);
    EXPECT_GT(at_return.ended, 0U);
    gate.open();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(gate.counts().ended, at_return.ended) << "reads that began after the gather had returned";
  }
  static Context make_context(const std::shared_ptr<Gate>& first, const std::shared_ptr<Gate>& second,
                              const Deadlines& deadlines) {
    engine::Table engines;
    engines.push_back(std::make_unique<GatedEngine>(std::vector{first, second}));
    engines.push_back(made::make_engine());
    return ContextBuilder::build(std::move(engines), {.lanes = 2, .deadlines = deadlines}).value();
  }

  static constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  TemporaryFolder folder_;
  std::shared_ptr<Gate> first_ = std::make_shared<Gate>("first");
  std::shared_ptr<Gate> second_ = std::make_shared<Gate>("second");
  Context context_;
  Rows table_;
  void* memory_;
};

TEST_F(ColdRowsOnDisks, are_read_no_more_when_a_gather_that_was_cancelled_returns) {
  first_->close();
  const RowsReport report =
      gather(every_other(0, in_several_turns), {.keep_going = [&] { return first_->counts().in_flight == 0; }});
  EXPECT_EQ(report.outcome, Outcome::cancelled);
  expect_silence(*first_);
}

TEST_F(ColdRowsOnDisks, are_read_no_more_when_a_gather_past_its_deadline_returns) {
  first_->close();
  const RowsReport report = gather(every_other(0, in_several_turns), {.deadline_seconds = 0.5});
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, Code::timed_out);
  EXPECT_EQ(report.outcome, Outcome::failed);
  expect_silence(*first_);
}

TEST_F(ColdRowsOnDisks, are_read_no_more_when_a_gather_that_failed_returns) {
  first_->close();
  const RowsReport report = gather_from_both_while_the_second_fails();
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, Code::io_error);
  EXPECT_EQ(report.outcome, Outcome::failed);
  expect_silence(*first_);
}

class ColdRowsOnAStuckDisk : public ColdRowsOnDisks {
 protected:
  ColdRowsOnAStuckDisk() : ColdRowsOnDisks({.cancel_grace_seconds = 0.05, .close_seconds = 10}) {}
};

TEST_F(ColdRowsOnAStuckDisk, that_may_still_come_make_a_gather_that_failed_an_abandoned_one) {
  first_->hang();
  const RowsReport report = gather_from_both_while_the_second_fails();
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, Code::io_error);
  EXPECT_EQ(report.outcome, Outcome::abandoned);
  EXPECT_GT(context_.statistics().quarantined_bytes, 0U);
}

TEST_F(ColdRowsOnDisks, that_have_arrived_are_told_past_the_deadline) {
  auto numbers = every_other(0, 20);
  const auto others = every_other(1, 10);
  numbers.insert(numbers.end(), others.begin(), others.end());
  second_->close();
  const RowsReport report = gather(numbers, {.deadline_seconds = 1});
  ASSERT_TRUE(report.error);
  EXPECT_EQ(report.error->code, Code::timed_out);
  EXPECT_NE(report.error->message.find("; about 20 of 30 rows of "), std::string::npos) << report.error->message;
}

TEST_F(ColdRowsOnDisks, with_neighbours_have_arrived_when_they_are_in_their_places) {
  std::vector<std::uint64_t> numbers = {0, 1, 2, 3, 100};
  const auto others = every_other(1, 10);
  numbers.insert(numbers.end(), others.begin(), others.end());
  second_->close();
  const RowsReport report = gather(numbers, {.deadline_seconds = 1});
  ASSERT_TRUE(report.error);
  EXPECT_NE(report.error->message.find("; about 1 of 15 rows of "), std::string::npos) << report.error->message;
}

}  // namespace
}  // namespace penstock::test
