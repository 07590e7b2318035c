// Groups of tensors behind a budget of GPU memory.
#include "penstock/layers.h"

#include <random>

#include "gpu/stream_order_test.h"
#include "support/graph_capture.h"
#include "support/layered_model.h"

namespace penstock::test {
namespace {

class GpuLayers : public InStreamOrder {
 protected:
  static constexpr std::uint64_t slot = 68 << 10;

  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    context_.emplace(make_context());
    model_.emplace(*context_, folder_, LayerShape{.files = 2});
  }
  Layers open(std::uint64_t budget, bool in_order = true) {
    auto layers =
        Layers::open(*context_, model_->model(), layer_groups(model_->model()).value(),
                     {.domain = Domain::cuda(0), .budget_bytes = budget, .deadline_seconds = 20, .in_order = in_order});
    EXPECT_TRUE(layers.ok()) << layers.error().message;
    return std::move(*layers);
  }
  testing::AssertionResult is_right(const Layers& layers, std::size_t group, std::span<const Region> tensors) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto held = model_->holds(bytes_of(tensors[i]), layers.groups()[group].tensors[i]);
      if (!held) return testing::AssertionFailure() << "group " << group << ": " << held.message();
    }
    return testing::AssertionSuccess();
  }

  std::optional<Context> context_;
  std::optional<LayeredModel> model_;
};

TEST_F(GpuLayers, passes_through_a_part_of_the_memory_have_the_right_bytes) {
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream(cuda::cu_stream_non_blocking);
  for (int pass = 0; pass < 3; ++pass) {
    for (std::size_t i = 0; i < layers.groups().size(); ++i) {
      const auto tensors = layers.acquire(i);
      ASSERT_TRUE(tensors.ok()) << tensors.error().message;
      EXPECT_TRUE(is_right(layers, i, *tensors));
      ASSERT_TRUE(layers.release(i, {stream}).ok());
    }
  }
  EXPECT_LE(layers.report().memory_bytes, 4 * slot);
}

TEST_F(GpuLayers, no_memory_is_allocated_after_opening) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  const auto pass = [&] {
    for (std::size_t i = 0; i < layers.groups().size(); ++i) {
      ASSERT_TRUE(layers.acquire(i).ok());
      ASSERT_TRUE(layers.release(i, {stream}).ok());
    }
  };
  pass();  // lanes get their staging
  const std::uint64_t before = fake_->counters().allocations;
  for (int i = 0; i < 3; ++i) pass();
  EXPECT_EQ(fake_->counters().allocations, before);
}

TEST_F(GpuLayers, memory_is_used_again_only_when_the_stream_has_passed_the_release) {
  Layers layers = open(3 * slot, false);
  const std::size_t slots = layers.report().slots.back().slots;
  const cuda::CuStream stream = make_stream();
  std::vector<std::vector<Region>> held;
  for (std::size_t i = 0; i < slots; ++i) {
    const auto tensors = layers.acquire(i).value();
    held.emplace_back(tensors.begin(), tensors.end());
  }
  Blocker kernels(gpu(), stream);
  for (std::size_t i = 0; i < slots; ++i) ASSERT_TRUE(layers.release(i, {stream}).ok());
  std::atomic<bool> is_there{false};
  std::thread other([&] {
    const auto tensors = layers.acquire(7);
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    is_there = true;
    EXPECT_TRUE(is_right(layers, 7, *tensors));
    EXPECT_TRUE(layers.release(7, {stream}).ok());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_there);
  if (fake_) {  // a copy of the program's would stand behind the wait
    for (std::size_t i = 0; i < slots; ++i) {
      std::vector<std::byte> bytes(held[i][0].size_bytes);
      ASSERT_EQ(fake_->peek(reinterpret_cast<std::uintptr_t>(held[i][0].data), bytes.data(), bytes.size()), 0);
      EXPECT_TRUE(model_->holds(bytes, layers.groups()[i].tensors[0]));
    }
  }
  // What was released and is still there is found.
  EXPECT_TRUE(layers.acquire(0).ok());
  EXPECT_EQ(layers.report().groups[0].hits, 1U);
  EXPECT_TRUE(layers.release(0, {stream}).ok());
  kernels.let_go();
  other.join();
  EXPECT_TRUE(is_there);
}

TEST_F(GpuLayers, a_group_used_on_several_streams_waits_for_all_of_them) {
  Layers layers = open(3 * slot, false);
  const std::size_t slots = layers.report().slots.back().slots;
  const cuda::CuStream streams[] = {make_stream(), make_stream()};
  for (std::size_t i = 1; i < slots; ++i) ASSERT_TRUE(layers.acquire(i).ok());
  ASSERT_TRUE(layers.acquire(0).ok());
  ASSERT_TRUE(layers.acquire(0).ok());
  Blocker kernels(gpu(), streams[0]);
  ASSERT_TRUE(layers.release(0, {streams[0]}).ok());
  ASSERT_TRUE(layers.release(0, {streams[1]}).ok());
  std::atomic<bool> is_there{false};
  std::thread other([&] { is_there = layers.acquire(7).ok(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(is_there);
  kernels.let_go();
  other.join();
  EXPECT_TRUE(is_there);
}

TEST_F(GpuLayers, a_stream_that_can_not_be_marked_leaves_the_group_held) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(16 * slot);
  for (std::size_t i = 0; i < layers.groups().size(); ++i) {
    ASSERT_TRUE(layers.acquire(i).ok());
    ASSERT_TRUE(layers.release(i).ok());
  }
  ASSERT_TRUE(layers.acquire(0).ok());
  fake_->fail_call("cuEventRecord", 1, cuda::cu_invalid_value, 0);
  const Status status = layers.release(0);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::device_error);
  EXPECT_EQ(layers.report().groups[0].held, 1U);
  EXPECT_TRUE(layers.release(0).ok());
}

TEST_F(GpuLayers, a_release_in_a_capture_is_refused_and_spoils_nothing) {
  Layers layers = open(16 * slot);
  ASSERT_TRUE(layers.acquire(0).ok());
  GraphCapture capture;
  const Status status = layers.release(0, {capture.stream()});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::unsupported);
  EXPECT_NE(status.error().message.find("captured"), std::string::npos);
  EXPECT_TRUE(capture.works());
  EXPECT_TRUE(layers.release(0, {capture.stream()}).ok());
}

TEST_F(GpuLayers, a_gpu_error_is_told_by_acquire) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(4 * slot, false);
  ASSERT_TRUE(layers.acquire(0).ok());
  fake_->fail_call("cuMemcpyHtoDAsync_v2", 1, cuda::cu_invalid_value, 1);
  fake_->fail_call("cuMemcpy2DAsync_v2", 1, cuda::cu_invalid_value, 1);
  fake_->fail_call("cuLaunchKernel", 1, cuda::cu_invalid_value, 1);
  const auto failed = layers.acquire(1);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::device_error) << failed.error().message;
  EXPECT_TRUE(layers.acquire(0).ok());
  fake_->clear_injections();
  const auto again = layers.acquire(1);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(is_right(layers, 1, *again));
}

TEST_F(GpuLayers, closing_waits_for_streams_that_have_not_passed_and_not_forever) {
  options_.deadlines.cancel_grace_seconds = 0.1;
  options_.deadlines.close_seconds = 0.2;
  context_.emplace(make_context());
  const cuda::CuStream stream = make_stream();
  Layers layers = open(4 * slot);
  ASSERT_TRUE(layers.acquire(0).ok());
  Blocker kernels(gpu(), stream);
  ASSERT_TRUE(layers.release(0, {stream}).ok());
  EXPECT_TRUE(layers.close().ok());
  kernels.let_go();
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(GpuLayers, a_budget_beyond_that_of_the_context_is_refused) {
  options_.device_budget_bytes = 2 * slot;
  Context small = make_context();
  const auto layers = Layers::open(small, model_->model(), layer_groups(model_->model()).value(),
                                   {.domain = Domain::cuda(0), .budget_bytes = 4 * slot});
  ASSERT_FALSE(layers.ok());
  EXPECT_EQ(layers.error().code, Code::over_budget);
}

}  // namespace
}  // namespace penstock::test
