// What penstock/cuda.h gives to programs and services: marks on streams, and addresses of words; our own streams.
#include <array>
#include <atomic>
#include <cstring>
#include <set>

#include "gpu/stream_order_test.h"
#include "penstock/cuda.h"

namespace penstock::test {
namespace {

class Cuda : public InStreamOrder {};

TEST_F(Cuda, a_mark_is_reached_when_the_stream_has_come_to_it) {
  const cuda::CuStream stream = make_stream(cuda::cu_stream_non_blocking);
  Blocker earlier(gpu(), stream);
  CudaMark mark = CudaMark::put(Domain::cuda(0), {stream}).value();
  EXPECT_FALSE(mark.reached().value());
  const cuda::CuStream other = make_stream(cuda::cu_stream_non_blocking);
  ASSERT_TRUE(mark.hold_back({other}).ok());
  const CudaMark after = CudaMark::put(Domain::cuda(0), {other}).value();
  EXPECT_FALSE(after.reached().value());
  const CudaMark moved = std::move(mark);
  earlier.let_go();
  EXPECT_TRUE(eventually([&] { return moved.reached().value() && after.reached().value(); }));
  EXPECT_EQ(mark.reached().error().code, Code::invalid_argument);
  EXPECT_EQ(mark.hold_back({other}).error().code, Code::invalid_argument);
}

TEST_F(Cuda, a_mark_needs_a_gpu) {
  EXPECT_EQ(CudaMark::put(Domain::host(), {}).error().code, Code::invalid_argument);
  EXPECT_EQ(CudaMark::put(Domain::cuda(99), {}).error().code, Code::no_device);
}

TEST_F(Cuda, a_word_in_a_pinned_buffer_is_one_that_streams_write_and_wait_for) {
  if (gpu().api().stream_write_value == nullptr) GTEST_SKIP() << "the driver has no such writes";
  Context context = make_context();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  const Buffer pinned = context.allocate(Domain::pinned(), 4096).value();
  auto* const words = reinterpret_cast<std::atomic<std::uint32_t>*>(pinned.data());
  words[0] = words[1] = 0;
  const std::uint64_t address = gpu_address(Domain::cuda(0), pinned.data()).value();
  const cuda::CuStream stream = make_stream(cuda::cu_stream_non_blocking);
  {
    const cuda::Current current(gpu());
    ASSERT_EQ(gpu().api().stream_wait_value(stream, address, 7, cuda::cu_wait_value_geq), cuda::cu_success);
    ASSERT_EQ(gpu().api().stream_write_value(stream, address + 4, 8, 0), cuda::cu_success);
  }
  EXPECT_EQ(words[1], 0U);
  words[0] = 7;
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_EQ(words[1], 8U);

  std::vector<std::byte> plain(4096);
  EXPECT_EQ(gpu_address(Domain::cuda(0), plain.data()).error().code, Code::device_error);
  EXPECT_EQ(gpu_address(Domain::host(), pinned.data()).error().code, Code::invalid_argument);
}

TEST_F(Cuda, our_streams_are_shared_rather_than_made_while_a_stream_waits) {
  auto order = cuda::StreamOrder::begin(gpu(), make_stream()).value();
  const std::uint64_t made = fake_ ? fake_->calls("cuStreamCreateWithPriority") : 0;
  std::vector<cuda::CuStream> taken;
  for (std::size_t i = 0; i < 2 * cuda::StreamPool::streams_most; ++i) taken.push_back(gpu().take_stream());
  if (fake_) {
    EXPECT_EQ(fake_->calls("cuStreamCreateWithPriority"), made);
  }
  order->release();
  for (cuda::CuStream stream : taken) EXPECT_EQ(wait_for(stream), cuda::cu_success);
  for (cuda::CuStream stream : taken) gpu().give_back_stream(stream);
  // As many as there may be, each with one user, now that they can be made.
  taken.clear();
  for (std::size_t i = 0; i < cuda::StreamPool::streams_most; ++i) taken.push_back(gpu().take_stream());
  const std::set<cuda::CuStream> different(taken.begin(), taken.end());
  EXPECT_EQ(different.size(), taken.size());
  for (cuda::CuStream stream : taken) gpu().give_back_stream(stream);
}

TEST_F(Cuda, kernels_of_the_table_are_launched_by_their_names) {
  Context context = make_context();
  ASSERT_TRUE(context.prepare(Domain::cuda(0)).ok());
  const cuda::CuStream stream = make_stream(cuda::cu_stream_non_blocking);
  EXPECT_EQ(launch_kernel(Domain::cuda(0), {stream}, "pigeon", 0, 1).error().code, Code::unsupported);
  EXPECT_EQ(launch_kernel(Domain::host(), {stream}, "scatter", 0, 1).error().code, Code::invalid_argument);
  if (gpu().kernels().find("scatter") == nullptr) GTEST_SKIP() << "there are no kernels";
  const Buffer memory = context.allocate(Domain::cuda(0), 8192).value();
  const Buffer pinned = context.allocate(Domain::pinned(), 4096).value();
  fill(memory.region().part(0, 4096), content(5, 0, 4096));
  const auto from = reinterpret_cast<std::uint64_t>(memory.data());
  const std::array<std::uint64_t, 6> entries = {from, from + 4096, 1000, from + 1000, from + 5096, 3096};
  std::memcpy(pinned.data(), entries.data(), sizeof(entries));
  const std::uint64_t table = gpu_address(Domain::cuda(0), pinned.data()).value();
  ASSERT_TRUE(launch_kernel(Domain::cuda(0), {stream}, "scatter", table, 2).ok());
  ASSERT_TRUE(launch_kernel(Domain::cuda(0), {stream}, "scatter", table, 0).ok());
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(holds_content(bytes_of(memory.region().part(4096, 4096)), 5, 0));
}

}  // namespace
}  // namespace penstock::test
