// Kernels that index arrays, on a real GPU: the fake driver runs no kernels of others.
#include <array>
#include <atomic>
#include <cstring>

#include "gpu_test.h"
#include "penstock/gpu_array.h"

extern "C" const char penstock_array_kernels[];

namespace penstock::test {
namespace {

using device::IoStatus;

// As in array_kernels.cu.
constexpr std::uint64_t array_word_factor = 0x9e3779b97f4a7c15ULL;
struct ArrayJob {
  std::uint64_t handle, memory, counts, first, size, most;
  std::uint32_t rounds, way;
};
enum class ArrayWay : std::uint32_t { elements, in_place, copied, long_elements };
using ArrayCounts = std::array<std::uint64_t, 16>;

class GpuArrayOnGpu : public GpuTest {
 protected:
  static constexpr std::uint64_t store_size_bytes = 8 * mib;
  static constexpr std::uint64_t most_words = 3000;
  static constexpr unsigned blocks = 64, threads = 128;

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (fake_) GTEST_SKIP() << "the fake driver runs no kernels of others";
    if (penstock_array_kernels[0] == '\0') GTEST_SKIP() << "built without nvcc";
    context_.emplace(make_context());
    ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().module_load_data(&module_, penstock_array_kernels), cuda::cu_success);
    stream_ = make_stream(cuda::cu_stream_non_blocking);
    memory_.resize(store_size_bytes);
    for (std::uint64_t i = 0; i < store_size_bytes / 8; ++i) {
      const std::uint64_t word = i * array_word_factor;
      std::memcpy(memory_.data() + 8 * i, &word, sizeof word);
    }
    counts_ = context_->allocate(Domain::cuda(0), sizeof(ArrayCounts)).value();
    area_ = context_->allocate(Domain::cuda(0), blocks * threads / 32 * most_words * 8).value();
    server_ = GpuServer::start(*context_, {.threads = 4}).value();
    queues_ = server_.open({.stores = {{.memory = Region::host(memory_.data(), memory_.size())}}}).value();
  }
  void TearDown() override {
    array_.close();
    queues_.close();
    server_.close();
    if (module_ != nullptr) {
      const cuda::Current current(gpu());
      driver_->api().stream_destroy(stream_);
      driver_->api().module_unload(module_);
    }
    GpuTest::TearDown();
  }

  void open(const GpuArrayOptions& options) {
    auto array = GpuArray::open(*context_, queues_, options);
    ASSERT_TRUE(array.ok()) << array.error().message;
    array_ = std::move(*array);
  }
  // So many frames of 4 KiB.
  static std::uint64_t room_for(std::uint32_t frames) { return 64 * 1024 + frames * 4104ULL; }

  ArrayCounts run(const char* name, ArrayWay way, std::uint32_t rounds = 8) {
    fill(counts_.region(), std::vector<std::byte>(counts_.size_bytes()));
    ArrayJob job{reinterpret_cast<std::uint64_t>(array_.handle()),
                 reinterpret_cast<std::uint64_t>(area_.data()),
                 reinterpret_cast<std::uint64_t>(counts_.data()),
                 array_.options().extent.offset / 8,
                 array_.options().extent.length / 8,
                 most_words,
                 rounds,
                 static_cast<std::uint32_t>(way)};
    const cuda::Current current(gpu());
    cuda::CuFunction function = nullptr;
    EXPECT_EQ(driver_->api().module_get_function(&function, module_, name), cuda::cu_success);
    void* parameters[] = {&job};
    EXPECT_EQ(driver_->api().launch_kernel(function, blocks, 1, 1, threads, 1, 1, 0, stream_, parameters, nullptr),
              cuda::cu_success);
    EXPECT_EQ(driver_->api().stream_synchronize(stream_), cuda::cu_success);
    ArrayCounts counts;
    std::memcpy(counts.data(), bytes_of(counts_.region()).data(), sizeof counts);
    EXPECT_EQ(counts[15], 0U) << "words that were wrong";
    return counts;
  }
  static std::uint64_t count_of(const ArrayCounts& counts, IoStatus status) {
    return counts[static_cast<std::size_t>(status)];
  }

  std::optional<Context> context_;
  cuda::CuModule module_ = nullptr;
  cuda::CuStream stream_ = nullptr;
  std::vector<std::byte> memory_;
  Buffer counts_, area_;
  GpuServer server_;
  GpuQueues queues_;
  GpuArray array_;
};

TEST_F(GpuArrayOnGpu, is_right_with_any_number_of_frames) {
  for (const std::uint32_t frames : {1U, 40U, 1000U, 3000U}) {
    open({.memory_bytes = room_for(frames)});
    for (const ArrayWay way : {ArrayWay::elements, ArrayWay::in_place, ArrayWay::copied, ArrayWay::long_elements}) {
      const ArrayCounts counts = run("penstock_index_at_random", way);
      EXPECT_GT(count_of(counts, IoStatus::done), 1000U) << frames << " frames, way " << static_cast<int>(way);
      for (std::size_t status = 1; status < 15; ++status) EXPECT_EQ(counts[status], 0U) << "status " << status;
    }
    const GpuArrayStatistics statistics = array_.statistics().value();
    EXPECT_GT(statistics.fetched, 0U);
    EXPECT_EQ(statistics.failed, 0U);
    if (frames == 3000) {
      EXPECT_LE(statistics.fetched, array_.page_count());
      EXPECT_GT(statistics.hits, statistics.fetched);
    }
  }
}

TEST_F(GpuArrayOnGpu, begins_anywhere_and_has_pages_of_any_size) {
  for (const std::uint32_t page_bytes : {512U, 4096U}) {
    open({.extent = {4080, 1'000'000}, .memory_bytes = 300'000, .page_bytes = page_bytes});
    for (const ArrayWay way : {ArrayWay::elements, ArrayWay::in_place, ArrayWay::copied, ArrayWay::long_elements}) {
      EXPECT_GT(count_of(run("penstock_index_at_random", way), IoStatus::done), 1000U);
    }
  }
}

TEST_F(GpuArrayOnGpu, tells_what_is_outside_or_misaligned) {
  open({.extent = {0, 100'000}});
  EXPECT_EQ(count_of(run("penstock_index_outside", ArrayWay::elements), IoStatus::out_of_window), blocks * threads);
  EXPECT_EQ(array_.statistics().value().first_failure.status, IoStatus::out_of_window);
  open({.extent = {8, 100'000}});
  const ArrayCounts counts = run("penstock_index_at_random", ArrayWay::long_elements);
  EXPECT_EQ(count_of(counts, IoStatus::done), 0U);
  EXPECT_GT(count_of(counts, IoStatus::misaligned), 0U);
}

TEST_F(GpuArrayOnGpu, ends_with_its_queues_and_works_again) {
  open({.memory_bytes = room_for(100)});
  ASSERT_TRUE(queues_.stop().ok());
  EXPECT_GT(count_of(run("penstock_index_at_random", ArrayWay::elements), IoStatus::closed), 0U);
  ASSERT_TRUE(queues_.reset().ok());
  const ArrayCounts counts = run("penstock_index_at_random", ArrayWay::elements);
  EXPECT_EQ(count_of(counts, IoStatus::closed), 0U);
  EXPECT_GT(count_of(counts, IoStatus::done), 1000U);
}

}  // namespace
}  // namespace penstock::test
