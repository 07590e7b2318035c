// Random acquires and releases of groups in GPU memory, over an engine that misbehaves, on several streams. What
// streams saw is compared.
#include "gpu/stream_order_test.h"
#include "support/layers_run.h"

namespace penstock::test {
namespace {

class GpuLayersRun : public LayersRun {
 public:
  GpuLayersRun(std::uint64_t seed, cuda::Device& gpu, std::vector<cuda::CuStream> streams)
      : LayersRun(seed, 20),
        gpu_(gpu),
        streams_(std::move(streams)),
        seen_(context_.allocate(Domain::pinned(), cells * cell_bytes).value()) {
    for (std::size_t i = 0; i < cells; ++i) free_.push_back(i);
  }
  std::uint64_t compared() const { return compared_; }

 private:
  static constexpr std::size_t cells = 64;
  static constexpr std::size_t cell_bytes = 32 << 10;

  // What a stream sees of a group.
  struct Look {
    std::size_t group = 0;
    std::size_t cell = 0;
  };

  Domain domain() const override { return Domain::cuda(0); }
  bool tells_once() const override { return false; }
  void check_bytes(std::size_t) override {}

  Result<std::span<const Region>> acquire(std::size_t group) override {
    if (free_.empty()) compare();
    const cuda::CuStream stream = streams_[below(streams_.size())];
    auto tensors = below(4) == 0 ? layers_.acquire(group) : layers_.acquire(group, {stream});
    if (!tensors) return tensors;
    users_[group].push_back(stream);
    look(group, *tensors, stream);
    return tensors;
  }

  // By the one who acquired it last.
  Status release(std::size_t group) override {
    const cuda::CuStream stream = users_[group].back();
    users_[group].pop_back();
    if (below(2) == 0) synchronize(stream);
    return layers_.release(group, {stream});
  }

  void finish() override {
    compare();
    users_.clear();
  }

  void look(std::size_t group, std::span<const Region> tensors, cuda::CuStream stream) {
    looks_.push_back({group, free_.back()});
    free_.pop_back();
    std::byte* to = seen_.data() + looks_.back().cell * cell_bytes;
    const cuda::Current current(gpu_);
    for (const Region& each : tensors) {
      if (each.size_bytes == 0) continue;
      ASSERT_EQ(gpu_.api().copy_from_device(to, cuda::device_address(each.data), each.size_bytes, stream),
                cuda::cu_success);
      to += each.size_bytes;
    }
  }

  // All that streams saw so far.
  void compare() {
    for (const cuda::CuStream stream : streams_) synchronize(stream);
    for (const Look& each : looks_) {
      free_.push_back(each.cell);
      const std::byte* from = seen_.data() + each.cell * cell_bytes;
      for (const GroupTensor& tensor : layers_.groups()[each.group].tensors) {
        const TensorInfo& info = model_->model().tensors()[tensor.tensor];
        const std::uint64_t bytes =
            tensor.rows ? info.size_bytes / info.shape[0] * (tensor.rows->end - tensor.rows->begin) : info.size_bytes;
        EXPECT_TRUE(model_->holds({from, bytes}, tensor)) << layers_.groups()[each.group].name;
        from += bytes;
      }
      ++compared_;
    }
    looks_.clear();
  }

  void synchronize(cuda::CuStream stream) {
    const cuda::Current current(gpu_);
    EXPECT_EQ(gpu_.api().stream_synchronize(stream), cuda::cu_success);
  }

  cuda::Device& gpu_;
  const std::vector<cuda::CuStream> streams_;
  Buffer seen_;
  std::vector<std::size_t> free_;
  std::vector<Look> looks_;
  std::map<std::size_t, std::vector<cuda::CuStream>> users_;  // of groups that are held
  std::uint64_t compared_ = 0;
};

class GpuLayersSeeded : public InStreamOrder {};

TEST_F(GpuLayersSeeded, what_streams_see_of_groups_has_the_right_bytes) {
  const std::uint64_t seed = from_environment("PENSTOCK_SEED", 1);
  if (fake_) fake_->set_delays(seed, 20);
  ASSERT_TRUE(make_context().prepare(Domain::cuda(0)).ok());
  GpuLayersRun run(seed, gpu(), {make_stream(), make_stream(cuda::cu_stream_non_blocking), cuda::CuStream{}});
  // Each takes longer than in host memory.
  const std::uint64_t acquires = from_environment("PENSTOCK_ACQUIRES", under_thread_sanitizer ? 5'000 : 15'000) / 3;
  run.go(acquires);
  EXPECT_GT(run.compared(), acquires / 4);
  if (HasFailure()) std::printf("PENSTOCK_SEED=%llu\n", static_cast<unsigned long long>(seed));
}

}  // namespace
}  // namespace penstock::test
