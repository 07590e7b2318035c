// Arrays over sets of queues in host memory, read by threads as kernels read them on a GPU: the same code but for the
// platform.
#include "penstock/gpu_array.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "engines/posix/engine.h"
#include "support/paged_array_platform.h"
#include "support/support.h"

namespace penstock::test {
namespace {

using device::IoStatus;

constexpr std::uint64_t array_file_bytes = (1 << 20) + 200;  // does not end with a block

// Its clock stands still unless it is turned.
class TurnedPlatform : public ArrayThreadPlatform {
 public:
  using Passed = TurnedPlatform&;
  std::uint64_t now() const { return time; }
  std::uint64_t time = 1;
};

class GpuArrayTest : public testing::Test {
 protected:
  void SetUp() override { bytes_ = content(3, 0, array_file_bytes); }

  void start(const fault::FaultPlan& faults = {}) {
    engine::Table engines;
    engines.push_back(fault::make_engine(posix::make_engine(), faults));
    context_.emplace(ContextBuilder::build(std::move(engines), {.lanes = 2, .deadlines = patient}).value());
    server_ = GpuServer::start(*context_, {.threads = 2}).value();
  }
  GpuStore memory() { return {.memory = Region::host(bytes_.data(), bytes_.size())}; }
  GpuStore file(Access access = Access::read) {
    write_file(folder_.path("array"), bytes_);
    return {.store = context_->open(folder_.path("array"), {.access = access}).value(),
            .writable = access != Access::read};
  }
  Result<GpuArray> open(const GpuStore& store, const GpuArrayOptions& options) {
    queues_ = server_
                  .open({.gpu = Domain::host(),
                         .stores = {store},
                         .queues = 2,
                         .depth = 64,
                         .place_bytes = 4096,
                         .timeout_seconds = 60,
                         .stall_seconds = 60})
                  .value();
    return GpuArray::open(*context_, queues_, options);
  }
  // So many frames of 4 KiB.
  static std::uint64_t room_for(std::uint32_t frames) { return 64 * 1024 + frames * 4104ULL; }

  // Elements at random, and stretches of several pages. Returns how many were wrong, or failed.
  std::uint64_t read_at_random(const GpuArray& array, std::uint32_t seed, int count) {
    ThreadArray io(array.handle(), seed);
    std::mt19937_64 random(seed);
    const Extent extent = array.options().extent;
    std::uint64_t wrong = 0;
    for (int i = 0; i < count; ++i) {
      const std::uint64_t index = random() % (extent.length / 8);
      std::uint64_t value = 0;
      const bool ok = io.get(index, value).ok();
      if (!ok || std::memcmp(&value, bytes_.data() + extent.offset + 8 * index, 8) != 0) ++wrong;
      const std::uint64_t begin = random() % extent.length;
      const device::Stretch stretch{begin, 1 + random() % std::min<std::uint64_t>(10'000, extent.length - begin)};
      std::uint64_t seen = 0;
      const auto look = [&](const unsigned char* bytes, std::uint64_t done, std::uint32_t length) {
        if (done != seen || std::memcmp(bytes, bytes_.data() + extent.offset + begin + done, length) != 0) ++wrong;
        seen += length;
      };
      if (!io.visit(stretch, look).ok() || seen != stretch.bytes) ++wrong;
    }
    return wrong;
  }
  std::uint64_t read_by_threads(const GpuArray& array, std::uint32_t threads, int count) {
    std::atomic<std::uint64_t> wrong = 0;
    std::vector<std::jthread> all;
    for (std::uint32_t i = 0; i < threads; ++i) {
      all.emplace_back([&, i] { wrong += read_at_random(array, i + 1, count); });
    }
    all.clear();
    return wrong;
  }

  TemporaryFolder folder_;
  std::vector<std::byte> bytes_;
  std::optional<Context> context_;
  GpuServer server_;
  GpuQueues queues_;
};

TEST_F(GpuArrayTest, reads_all_of_a_store_that_fits_once) {
  start();
  GpuArray array = open(memory(), {}).value();
  EXPECT_EQ(array.page_count(), 257U);
  EXPECT_EQ(array.frame_count(), 257U);
  EXPECT_EQ(read_by_threads(array, 3, 500), 0U);
  const GpuArrayStatistics statistics = array.statistics().value();
  EXPECT_EQ(statistics.fetched, 257U);
  EXPECT_EQ(statistics.passed + statistics.failed, 0U);
  EXPECT_GT(statistics.hits, 1000U);
  EXPECT_TRUE(statistics.first_failure.ok());
}

TEST_F(GpuArrayTest, is_right_with_fewer_frames_than_threads) {
  start();
  for (const std::uint32_t frames : {1U, 3U, 100U}) {
    GpuArray array = open(frames == 3 ? file() : memory(), {.memory_bytes = room_for(frames)}).value();
    EXPECT_LE(array.frame_count(), frames + 16);
    EXPECT_EQ(read_by_threads(array, 6, 60), 0U) << frames;
    EXPECT_GT(array.statistics().value().fetched, 100U);
  }
}

TEST_F(GpuArrayTest, begins_and_ends_anywhere_in_its_store) {
  start();
  GpuStore store = memory();
  store.window = {512, 1 << 19};
  for (const std::uint64_t offset : {512ULL, 4088ULL, 70'000ULL}) {
    GpuArray array =
        open(store, {.extent = {offset, 300'000}, .memory_bytes = room_for(20), .page_bytes = 1024}).value();
    EXPECT_EQ(read_by_threads(array, 2, 40), 0U) << offset;
  }
}

TEST_F(GpuArrayTest, tells_of_failures_and_goes_on_after_them) {
  start({.io_error = 300});
  GpuArray array = open(file(Access::write), {.memory_bytes = room_for(20)}).value();
  EXPECT_GT(read_by_threads(array, 3, 60), 0U);
  const GpuArrayStatistics statistics = array.statistics().value();
  EXPECT_GT(statistics.failed, 0U);
  EXPECT_EQ(statistics.first_failure.status, IoStatus::failed);
  EXPECT_GT(statistics.fetched, 0U);
}

TEST_F(GpuArrayTest, keeps_one_deadline_for_all_pages_of_a_call) {
  start();
  GpuArray array = open(memory(), {}).value();
  TurnedPlatform platform;
  device::PagedArrayIo<TurnedPlatform> io(*array.handle(), platform);
  std::uint32_t pages = 0;
  const auto look = [&](const unsigned char*, std::uint64_t, std::uint32_t) {
    ++pages;
    platform.time += 10;
  };
  EXPECT_EQ(io.visit_together({0, array_file_bytes}, 100, look).status, IoStatus::timed_out);
  EXPECT_GE(pages, 10U);
  EXPECT_LT(pages, array.page_count());
}

TEST_F(GpuArrayTest, ends_with_its_set_of_queues) {
  start();
  GpuArray array = open(memory(), {.memory_bytes = room_for(4)}).value();
  EXPECT_EQ(read_by_threads(array, 1, 10), 0U);
  ASSERT_TRUE(queues_.stop().ok());
  ThreadArray io(array.handle(), 0);
  std::uint64_t closed = 0;
  for (std::uint64_t page = 0; page < 256; ++page) {
    std::uint64_t value = 0;
    if (io.get(page * 512, value).status == IoStatus::closed) ++closed;
  }
  EXPECT_GE(closed, 200U);
  ASSERT_TRUE(queues_.reset().ok());
  EXPECT_EQ(read_by_threads(array, 2, 20), 0U) << "the next launch works";
}

TEST_F(GpuArrayTest, forgets_what_it_has_when_told) {
  start();
  GpuArray array = open(memory(), {}).value();
  ThreadArray io(array.handle(), 0);
  std::uint64_t value = 0;
  ASSERT_TRUE(io.get(7, value).ok());
  bytes_[56] ^= std::byte{1};
  std::uint64_t again = 0;
  ASSERT_TRUE(io.get(7, again).ok());
  EXPECT_EQ(again, value);
  ASSERT_TRUE(array.clear().ok());
  ASSERT_TRUE(io.get(7, again).ok());
  EXPECT_EQ(again, value ^ 1);
  EXPECT_EQ(array.statistics().value().fetched, 1U);
}

TEST_F(GpuArrayTest, refuses_what_can_not_be) {
  start();
  const auto code = [&](const GpuArrayOptions& options) {
    auto array = open(memory(), options);
    return array.ok() ? Code::ok : array.error().code;
  };
  EXPECT_EQ(code({.store = 1}), Code::invalid_argument);
  EXPECT_EQ(code({.page_bytes = 8192}), Code::invalid_argument);
  EXPECT_EQ(code({.page_bytes = 256}), Code::invalid_argument);
  EXPECT_EQ(code({.page_bytes = 1000}), Code::invalid_argument);
  EXPECT_EQ(code({.extent = {array_file_bytes}}), Code::out_of_range);
  EXPECT_EQ(code({.extent = {8, array_file_bytes}}), Code::out_of_range);
  EXPECT_EQ(code({.extent = {0, 0}}), Code::out_of_range);
  EXPECT_EQ(code({.memory_bytes = 4096}), Code::over_budget);
  EXPECT_EQ(GpuArray::open(*context_, GpuQueues(), {}).error().code, Code::invalid_argument);
  GpuArray none;
  EXPECT_EQ(none.clear().error().code, Code::invalid_argument);
  EXPECT_EQ(none.statistics().error().code, Code::invalid_argument);
  EXPECT_EQ(none.handle(), nullptr);
}

}  // namespace
}  // namespace penstock::test
