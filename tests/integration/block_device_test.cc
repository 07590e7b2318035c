// Block devices through the public API: what is read and written, what is refused, and writers that share a block.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "api/context_builder.h"
#include "integration/machine.h"
#include "support/support.h"

namespace penstock::test {
namespace {

struct DeviceCase {
  std::string engine;
  unsigned sector_bytes;
};
void PrintTo(const DeviceCase& device, std::ostream* out) {
  *out << device.engine << '_' << device.sector_bytes;
}

const OpenOptions for_writing{.access = Access::write, .allow_block_device_write = true};

class BlockDevice : public testing::TestWithParam<DeviceCase> {
 protected:
  static constexpr std::size_t size_bytes = 4 << 20;

  void SetUp() override { make_device(size_bytes); }

  void make_device(std::size_t size) {
    device_.reset();
    write_file(image_, content(1, 0, size));
    device_.emplace(image_, "--sector-size " + std::to_string(GetParam().sector_bytes));
    if (!device_->refusal().empty()) SKIP_OUTSIDE_CI(device_->refusal());
    engine::Table table = table_of(GetParam().engine);
    if (const auto probe = table[0]->probe(); !probe.available) GTEST_SKIP() << probe.reason;
    context_.emplace(ContextBuilder::build(std::move(table), options_).value());
  }

  Report write(const Store& store, std::uint64_t offset, std::span<const std::byte> bytes) {
    // The library reads from memory it is given; an odd address is what a device can't take.
    std::vector<std::byte> shifted(bytes.size() + 1);
    std::copy(bytes.begin(), bytes.end(), shifted.begin() + 1);
    return context_->write(store, offset, Region::host(shifted.data() + 1, bytes.size()), {.durable = true});
  }

  Options options_ = [] {
    Options options;
    options.lanes = 2;
    return options;
  }();
  TemporaryFolder folder_;
  const std::string image_ = folder_.path("image");
  std::optional<AttachedLoop> device_;
  std::optional<Context> context_;
};

INSTANTIATE_TEST_SUITE_P(Engines, BlockDevice,
                         testing::Values(DeviceCase{"posix", 512}, DeviceCase{"posix", 4096}, DeviceCase{"uring", 512},
                                         DeviceCase{"uring", 4096}),
                         testing::PrintToStringParamName());

TEST_P(BlockDevice, tells_its_size_and_block) {
  const Store store = context_->open(device_->path()).value();
  EXPECT_EQ(store.info().kind, StoreKind::block_device);
  EXPECT_EQ(store.info().size_bytes, size_bytes);
  EXPECT_EQ(store.info().block_bytes, GetParam().sector_bytes);
  EXPECT_EQ(store.size_bytes().value(), size_bytes);
  EXPECT_TRUE(store.info().direct);
  EXPECT_FALSE(store.info().writable);
}

TEST_P(BlockDevice, is_read_at_any_offset) {
  for (const Cache cache : {Cache::automatic, Cache::keep, Cache::bypass}) {
    options_.cache = cache;
    context_.emplace(ContextBuilder::build(table_of(GetParam().engine), options_).value());
    const Store store = context_->open(device_->path()).value();
    for (const std::uint64_t offset : {0, 1, 511, 513, 4095, 4097, 1'048'575}) {
      for (const std::size_t length : {1, 512, 4095, 4096, 70'001, 2'000'003}) {
        GuardedMemory memory(length);
        const Report report = context_->read(store, offset, memory.region());
        ASSERT_TRUE(report.ok()) << report.error->message;
        ASSERT_TRUE(holds_content(memory.bytes(), 1, offset)) << offset << " + " << length;
      }
    }
    GuardedMemory last(1000);
    ASSERT_TRUE(context_->read(store, size_bytes - 1000, last.region()).ok());
    EXPECT_TRUE(holds_content(last.bytes(), 1, size_bytes - 1000));
    EXPECT_EQ(context_->read(store, size_bytes - 999, last.region()).error->code, Code::out_of_range);
  }
}

TEST_P(BlockDevice, is_not_written_without_the_explicit_word) {
  const auto refused = context_->open(device_->path(), {.access = Access::write});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::read_only);
  EXPECT_FALSE(refused.error().hint.empty());
  const Store store = context_->open(device_->path()).value();
  EXPECT_EQ(write(store, 0, content(2, 0, 512)).error->code, Code::read_only);
  EXPECT_TRUE(holds_content(read_file(image_), 1, 0));
}

TEST_P(BlockDevice, is_written_at_every_alignment_and_nowhere_else) {
  const Store store = context_->open(device_->path(), for_writing).value();
  auto expected = content(1, 0, size_bytes);
  std::uint64_t seed = 2;
  for (const std::uint64_t offset : {0, 1, 511, 512, 4095, 4096, 5000, 1'048'575}) {
    for (const std::size_t length : {1, 511, 512, 4096, 4097, 10'000, 1'100'000}) {
      const auto bytes = content(++seed, offset, length);
      const Report report = write(store, offset, bytes);
      ASSERT_TRUE(report.ok()) << report.error->message;
      ASSERT_EQ(report.bytes, length);
      ASSERT_EQ(std::accumulate(report.routes.begin(), report.routes.end(), std::uint64_t{0}), length);
      std::copy(bytes.begin(), bytes.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
      GuardedMemory back(length);
      ASSERT_TRUE(context_->read(store, offset, back.region()).ok());
      ASSERT_TRUE(holds_content(back.bytes(), seed, offset)) << offset << " + " << length;
    }
  }
  EXPECT_EQ(read_file(image_), expected);
}

TEST_P(BlockDevice, is_zeroed_through_the_page_cache_too) {
  options_.cache = Cache::keep;
  context_.emplace(ContextBuilder::build(table_of(GetParam().engine), options_).value());
  const Store store = context_->open(device_->path(), for_writing).value();
  const Report report = context_->zero(store, 1000, 3'000'001, {.durable = true});
  ASSERT_TRUE(report.ok()) << report.error->message;
  auto expected = content(1, 0, size_bytes);
  std::fill_n(expected.begin() + 1000, 3'000'001, std::byte{0});
  EXPECT_TRUE(same_bytes(read_file(image_), expected));
}

TEST_P(BlockDevice, is_zeroed_at_every_alignment_and_deallocated_by_the_block) {
  const Store store = context_->open(device_->path(), for_writing).value();
  auto expected = content(1, 0, size_bytes);
  const auto check = [&](std::uint64_t offset, std::size_t length, const std::vector<std::byte>& now) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(offset), length, std::byte{0});
    ASSERT_TRUE(same_bytes(now, expected)) << offset << " + " << length;
  };
  for (const std::uint64_t offset : {1, 4096, 300'000, 1'048'577}) {
    for (const std::size_t length : {1, 512, 4097, 100'000}) {
      const Report report = context_->zero(store, offset, length, {.durable = true});
      ASSERT_TRUE(report.ok()) << report.error->message;
      ASSERT_EQ(report.bytes, length);
      ASSERT_NO_FATAL_FAILURE(check(offset, length, read_file(image_)));
    }
  }
  // From within a block on: the first that is whole is the one after it.
  const Report report = context_->deallocate(store, (2 << 20) + 1, 1 << 20, {.durable = true});
  ASSERT_TRUE(report.ok() || report.error->code == Code::unsupported) << report.error->message;
  if (!report.ok()) GTEST_SKIP() << "the device can't deallocate: " << report.error->message;
  const std::uint64_t begin = (2 << 20) + 4096;
  EXPECT_EQ(report.bytes, (1 << 20) - 4096U);
  ASSERT_NO_FATAL_FAILURE(check(begin, report.bytes, read_file(image_))) << "a loop device punches a hole";
}

TEST_P(BlockDevice, is_written_up_to_an_end_that_is_no_whole_block_of_ours) {
  if (GetParam().sector_bytes != 512) GTEST_SKIP() << "such a device can't have an end like that";
  const std::size_t odd_size = (1 << 20) + 3 * 512;
  ASSERT_NO_FATAL_FAILURE(make_device(odd_size));
  const Store store = context_->open(device_->path(), for_writing).value();
  ASSERT_EQ(store.info().size_bytes, odd_size);
  for (const std::size_t length : {1, 100, 512, 1536, 1537, 10'000}) {
    const Report report = write(store, odd_size - length, content(length, odd_size - length, length));
    ASSERT_TRUE(report.ok()) << length << ": " << report.error->message;
    const auto now = read_file(image_);
    ASSERT_TRUE(holds_content(std::span(now).last(length), length, odd_size - length));
    GuardedMemory back(length);
    ASSERT_TRUE(context_->read(store, odd_size - length, back.region()).ok());
    ASSERT_TRUE(holds_content(back.bytes(), length, odd_size - length));
  }
}

TEST_P(BlockDevice, is_not_written_past_its_end) {
  const Store store = context_->open(device_->path(), for_writing).value();
  EXPECT_EQ(write(store, size_bytes - 10, content(2, 0, 11)).error->code, Code::out_of_range);
  EXPECT_EQ(write(store, size_bytes, content(2, 0, 1)).error->code, Code::out_of_range);
  EXPECT_TRUE(holds_content(read_file(image_), 1, 0)) << "nothing of a refused write is there";
  EXPECT_TRUE(write(store, size_bytes - 10, content(2, 0, 10)).ok());
}

TEST_P(BlockDevice, is_shared_by_writers_of_parts_of_one_block) {
  constexpr std::size_t area_bytes = 64 << 10;
  constexpr std::size_t stripe_bytes = 197;  // no two edges of a block fall together
  constexpr std::size_t writers = 6;
  const Store store = context_->open(device_->path(), for_writing).value();
  auto bytes = content(2, 0, area_bytes);
  const auto ranges_of = [&](std::size_t writer) {
    std::vector<Range> ranges;
    for (std::size_t at = writer * stripe_bytes; at < area_bytes; at += writers * stripe_bytes) {
      ranges.push_back({&store, at, Region::host(&bytes[at], std::min(stripe_bytes, area_bytes - at))});
    }
    return ranges;
  };
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (std::size_t writer = 0; writer < writers; ++writer) {
    threads.emplace_back([&, writer] {
      const auto ranges = ranges_of(writer);
      if (writer % 2 == 0) {
        if (!context_->transfer(Direction::write, ranges).ok()) ++failed;
        return;
      }
      for (const Range& range : ranges) {
        if (!context_->write(store, range.offset, range.memory).ok()) ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  const auto now = read_file(image_);
  EXPECT_TRUE(holds_content(std::span(now).first(area_bytes), 2, 0));
  EXPECT_TRUE(holds_content(std::span(now).subspan(area_bytes), 1, area_bytes));
}

TEST_P(BlockDevice, is_left_alone_while_it_is_mounted) {
  if (!make_file_system(device_->path())) SKIP_OUTSIDE_CI("no mkfs.ext4 here");
  OwnMount mount({.source = device_->path()}, folder_.path("mounted"));
  if (!mount.mounted()) SKIP_OUTSIDE_CI("mounting is not allowed here");
  const auto refused = context_->open(device_->path(), for_writing);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::in_use);
  EXPECT_TRUE(context_->open(device_->path()).ok()) << "reading does no harm";
  mount.release();
}

TEST_P(BlockDevice, has_one_writer_at_a_time) {
  std::optional<Store> first = context_->open(device_->path(), for_writing).value();
  const auto second = context_->open(device_->path(), for_writing);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::in_use);
  first.reset();
  EXPECT_TRUE(context_->open(device_->path(), for_writing).ok());
}

}  // namespace
}  // namespace penstock::test
