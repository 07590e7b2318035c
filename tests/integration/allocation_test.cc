// No allocation on the data path: how often a request allocates does not depend on how many operations it takes.
#include <gtest/gtest.h>

#include <filesystem>

#include "api/context_builder.h"
#include "integration/allocations.h"
#include "integration/machine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

struct PathCase {
  std::string engine;
  Cache cache;
  bool aligned;
};
void PrintTo(const PathCase& path, std::ostream* out) {
  *out << path.engine << '_' << cache_name(path.cache) << (path.aligned ? "_aligned" : "_unaligned");
}

class Allocations : public testing::TestWithParam<PathCase> {
 protected:
  static constexpr std::size_t size_bytes = 64 << 20;
  static constexpr std::size_t chunk_bytes = 64 << 10;
  // A long request may ask for a few things more than a short one; one for each of its chunks would be a thousand.
  static constexpr std::uint64_t few = 8;

  void SetUp() override {
    engine::Table table = table_of(GetParam().engine);
    if (const auto probe = table[0]->probe(); !probe.available) GTEST_SKIP() << probe.reason;
    Options options;
    options.lanes = 2;
    options.cache = GetParam().cache;
    options.storage_chunk_bytes = chunk_bytes;
    context_.emplace(ContextBuilder::build(std::move(table), options).value());
    // Holes: what is measured is ours, not the disk's.
    write_file(path_, {});
    std::filesystem::resize_file(path_, size_bytes);
    if (GetParam().cache != Cache::bypass) warm(path_);
    memory_ = context_->allocate(Domain::host(), size_bytes + 4096).value();
  }

  Region destination(std::size_t length) const { return memory_.region().part(GetParam().aligned ? 0 : 1, length); }

  // Of the quietest of a few requests: the first ones start threads, and those may still be starting.
  template <typename Action>
  static std::uint64_t fewest_allocations(Action action) {
    std::uint64_t fewest = UINT64_MAX;
    for (int i = 0; i < 3; ++i) {
      const std::uint64_t before = allocation_count();
      action();
      fewest = std::min(fewest, allocation_count() - before);
    }
    return fewest;
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_.path("file");
  std::optional<Context> context_;
  Buffer memory_;
};

INSTANTIATE_TEST_SUITE_P(
    Paths, Allocations,
    testing::Values(PathCase{"posix", Cache::automatic, true}, PathCase{"posix", Cache::automatic, false},
                    PathCase{"posix", Cache::bypass, true}, PathCase{"posix", Cache::bypass, false},
                    PathCase{"uring", Cache::automatic, true}, PathCase{"uring", Cache::automatic, false},
                    PathCase{"uring", Cache::bypass, true}, PathCase{"uring", Cache::bypass, false}),
    testing::PrintToStringParamName());

TEST_P(Allocations, of_a_read_do_not_grow_with_its_length) {
  const Store store = context_->open(path_).value();
  const auto read = [&](std::size_t length) { ASSERT_TRUE(context_->read(store, 0, destination(length)).ok()); };
  read(size_bytes);
  const std::uint64_t of_short = fewest_allocations([&] { read(16 << 20); });  // callers copy shorter ones
  const std::uint64_t of_long = fewest_allocations([&] { read(size_bytes); });
  EXPECT_LE(of_long, of_short + few) << "16 MiB: " << of_short << " allocations, 64 MiB: " << of_long;
  EXPECT_LE(of_short, 40U);
}

TEST_P(Allocations, of_a_write_do_not_grow_with_its_length) {
  const Store store = context_->open(path_, {.access = Access::write}).value();
  const auto write = [&](std::size_t length) { ASSERT_TRUE(context_->write(store, 1000, destination(length)).ok()); };
  write(8 << 20);
  const std::uint64_t of_short = fewest_allocations([&] { write(2 << 20); });
  const std::uint64_t of_long = fewest_allocations([&] { write(8 << 20); });
  EXPECT_LE(of_long, of_short + few) << "2 MiB: " << of_short << " allocations, 8 MiB: " << of_long;
}

TEST_P(Allocations, of_many_ranges_do_not_grow_with_their_number) {
  const Store store = context_->open(path_).value();
  const auto ranges = [&](std::size_t count) {
    std::vector<Range> made;
    for (std::size_t i = 0; i < count; ++i)
      made.push_back({&store, i * 5000, destination(size_bytes).part(i * 100, 100)});
    return made;
  };
  const auto short_list = ranges(100);
  const auto long_list = ranges(10'000);
  const auto read = [&](const std::vector<Range>& list) {
    ASSERT_TRUE(context_->transfer(Direction::read, list).ok());
  };
  read(long_list);
  const std::uint64_t of_short = fewest_allocations([&] { read(short_list); });
  const std::uint64_t of_long = fewest_allocations([&] { read(long_list); });
  EXPECT_LE(of_long, of_short + few) << "100: " << of_short << " allocations, 10,000: " << of_long;
}

TEST_P(Allocations, of_a_small_read_on_the_callers_thread_are_a_handful) {
  const Store store = context_->open(path_).value();
  const auto read = [&] { ASSERT_TRUE(context_->read(store, 4096, destination(4096)).ok()); };
  read();
  EXPECT_LE(fewest_allocations(read), GetParam().cache == Cache::automatic ? 0U : 20U);
}

}  // namespace
}  // namespace penstock::test
