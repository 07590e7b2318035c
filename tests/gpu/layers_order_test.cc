// Groups of tensors that are used in the order of a stream.
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/stream_order_test.h"
#include "penstock/layers.h"
#include "support/gated_engine.h"
#include "support/graph_capture.h"
#include "support/layered_model.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;

class LayersInOrder : public InStreamOrder {
 protected:
  static constexpr std::uint64_t slot = 68 << 10;

  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    plain_.emplace(make_context());
    model_.emplace(*plain_, folder_, LayerShape{.files = 2});
    open_context();
  }
  void open_context() {
    engine::Table engines;
    engines.push_back(std::make_unique<GatedEngine>(std::vector{disk_}));
    context_.emplace(ContextBuilder::build(std::move(engines), options_).value());
    ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
  }
  // Nothing is loaded before it is asked for.
  Layers open(std::uint64_t budget, double deadline_seconds = 20) {
    auto layers = Layers::open(
        *context_, model_->model(), layer_groups(model_->model()).value(),
        {.domain = Domain::cuda(0), .budget_bytes = budget, .deadline_seconds = deadline_seconds, .in_order = false});
    EXPECT_TRUE(layers.ok()) << layers.error().message;
    return std::move(*layers);
  }
  // What the stream sees of a tensor when it comes here.
  class Seen {
   public:
    Seen(LayersInOrder& test, const Region& tensor, cuda::CuStream stream)
        : memory_(test.plain_->allocate(Domain::pinned(), tensor.size_bytes).value()) {
      const cuda::Current current(test.gpu());
      EXPECT_EQ(test.driver_->api().copy_from_device(memory_.data(), cuda::device_address(tensor.data),
                                                     tensor.size_bytes, stream),
                cuda::cu_success);
    }
    std::span<const std::byte> bytes() const { return memory_.bytes(); }

   private:
    Buffer memory_;
  };
  testing::AssertionResult is_right(const Layers& layers, std::size_t group, const Seen& seen) const {
    return model_->holds(seen.bytes(), layers.groups()[group].tensors[0]);
  }
  std::shared_ptr<Gate> disk_ = std::make_shared<Gate>("model");
  std::optional<Context> plain_;
  std::optional<LayeredModel> model_;
  std::optional<Context> context_;
};

TEST_F(LayersInOrder, acquire_returns_when_the_group_is_there) {
  Layers layers = open(4 * slot);
  for (const cuda::CuStream stream : {make_stream(), make_stream(cuda::cu_stream_non_blocking), cuda::CuStream{}}) {
    disk_->close();
    std::atomic<bool> has_returned{false};
    std::jthread acquires([&] {
      const auto tensors = layers.acquire(1, {stream});
      has_returned = true;
      ASSERT_TRUE(tensors.ok()) << tensors.error().message;
      EXPECT_TRUE(layers.report().groups[1].is_loaded);
      const Seen seen(*this, tensors->front(), stream);
      ASSERT_EQ(wait_for(stream), cuda::cu_success);
      EXPECT_TRUE(is_right(layers, 1, seen));
    });
    ASSERT_TRUE(eventually([&] { return disk_->counts().in_flight != 0; }));
    EXPECT_FALSE(has_returned);
    disk_->open();
    acquires.join();
    EXPECT_TRUE(layers.release(1, {stream}).ok());
    layers = open(4 * slot);
  }
}

TEST_F(LayersInOrder, nothing_is_put_on_the_stream) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  ASSERT_TRUE(layers.acquire(0).ok());
  const std::uint64_t waits = fake_->calls("cuStreamWaitValue32_v2");
  const std::uint64_t events = fake_->calls("cuEventRecord");
  ASSERT_TRUE(layers.acquire(0, {stream}).ok());
  EXPECT_EQ(fake_->calls("cuEventRecord"), events) << "it is there";
  ASSERT_TRUE(layers.acquire(1, {stream}).ok());
  EXPECT_EQ(fake_->calls("cuStreamWaitValue32_v2"), waits);
  EXPECT_EQ(layers.report().groups[0].hits, 1U);
  EXPECT_EQ(layers.report().groups[1].waits, 1U);
  EXPECT_EQ(gpu().stream_waits(), 0U);
}

TEST_F(LayersInOrder, threads_and_streams_share_one_load) {
  Layers layers = open(4 * slot);
  disk_->close();
  std::vector<cuda::CuStream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(make_stream(cuda::cu_stream_non_blocking));
  std::vector<std::optional<Seen>> seen(streams.size());
  std::jthread opens([&] {
    eventually([&] { return disk_->counts().in_flight != 0; });
    disk_->open();
  });
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto tensors = layers.acquire(2, {streams[i]});
        ASSERT_TRUE(tensors.ok()) << tensors.error().message;
        seen[i].emplace(*this, tensors->front(), streams[i]);
        EXPECT_TRUE(layers.release(2, {streams[i]}).ok());
      });
    }
  }
  std::jthread waits([&] {
    ASSERT_TRUE(layers.acquire(2).ok());
    EXPECT_TRUE(layers.release(2).ok());
  });
  waits.join();
  for (std::size_t i = 0; i < streams.size(); ++i) {
    ASSERT_EQ(wait_for(streams[i]), cuda::cu_success);
    EXPECT_TRUE(is_right(layers, 2, *seen[i]));
  }
  const GroupReport report = layers.report().groups[2];
  EXPECT_EQ(report.loads, 1U);
  EXPECT_EQ(report.waits + report.hits, streams.size() + 1);
  EXPECT_EQ(report.held, 0U);
}

TEST_F(LayersInOrder, passes_through_a_part_of_the_memory_have_the_right_bytes) {
  Layers layers = open(4 * slot);
  const cuda::CuStream streams[] = {make_stream(), make_stream(cuda::cu_stream_non_blocking)};
  std::vector<std::pair<std::size_t, Seen>> seen;
  for (std::size_t i = 0; i < 5 * layers.groups().size(); ++i) {
    const std::size_t group = i % layers.groups().size();
    const cuda::CuStream stream = streams[i % 2];
    const auto tensors = i % 5 == 0 ? layers.acquire(group) : layers.acquire(group, {stream});
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    seen.emplace_back(group, Seen(*this, tensors->front(), stream));
    ASSERT_TRUE(layers.release(group, {stream}).ok());
  }
  for (const cuda::CuStream stream : streams) ASSERT_EQ(wait_for(stream), cuda::cu_success);
  for (const auto& [group, bytes] : seen) EXPECT_TRUE(is_right(layers, group, bytes)) << group;
  EXPECT_TRUE(layers.check().ok());
}

// In the only queue of each kind.
TEST_F(LayersInOrder, copies_of_the_caller_don_t_stand_in_the_way_of_loads) {
  PENSTOCK_NEEDS_FAKE();
  fake_->set_connections(1);
  options_.deadlines.stream_seconds = 0.2;
  open_context();
  Layers layers = open(4 * slot);
  const Buffer other = context_->allocate(Domain::cuda(0), mib).value();
  Buffer pinned = context_->allocate(Domain::pinned(), mib).value();
  const cuda::CuStream stream = make_stream();
  for (std::size_t group = 0; group < layers.groups().size(); ++group) {
    const auto tensors = layers.acquire(group, {stream});
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    const Seen seen(*this, tensors->front(), stream);
    {
      const cuda::Current current(gpu());
      ASSERT_EQ(driver_->api().copy_to_device(cuda::device_address(other.data()), pinned.data(), mib, stream),
                cuda::cu_success);
    }
    EXPECT_TRUE(layers.release(group, {stream}).ok());
    ASSERT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_TRUE(is_right(layers, group, seen));
  }
}

TEST_F(LayersInOrder, a_load_that_fails_is_told_by_acquire_and_the_stream_goes_on) {
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->fail();
  EXPECT_EQ(layers.acquire(1, {stream}).error().code, Code::io_error);
  EXPECT_EQ(layers.report().all.held, 0U);
  EXPECT_EQ(layers.report().groups[1].failed_loads, 1U);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  disk_->open();
  ASSERT_TRUE(layers.acquire(1, {stream}).ok()) << "the next one tries again";
  EXPECT_TRUE(layers.release(1, {stream}).ok());
}

TEST_F(LayersInOrder, a_load_that_can_not_begin_is_told_at_once) {
  std::filesystem::remove(model_->paths()[0]);
  std::filesystem::remove(model_->paths()[1]);
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  const auto failed = layers.acquire(0, {stream});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::not_found) << failed.error().message;
  EXPECT_EQ(layers.report().all.held, 0U);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(LayersInOrder, while_all_slots_are_held_the_caller_waits_for_a_release_or_its_deadline) {
  Layers layers = open(3 * slot, 0.2);
  const cuda::CuStream stream = make_stream();
  const std::size_t slots = layers.report().slots.back().slots;
  for (std::size_t i = 0; i < slots; ++i) ASSERT_TRUE(layers.acquire(i, {stream}).ok());
  const auto more = layers.acquire(7, {stream});
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().code, Code::timed_out);
  std::jthread later([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(layers.release(0, {stream}).ok());
  });
  const auto tensors = layers.acquire(7, {stream});
  later.join();
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  const Seen seen(*this, tensors->front(), stream);
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(is_right(layers, 7, seen));
}

TEST_F(LayersInOrder, an_operation_that_never_comes_back_costs_its_slot) {
  PENSTOCK_NEEDS_FAKE();
  options_.deadlines.stall_seconds = 0.2;
  options_.deadlines.cancel_grace_seconds = 0.05;
  open_context();
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  ASSERT_TRUE(layers.acquire(0, {stream}).ok());
  fake_->hang(0, 1);
  EXPECT_EQ(layers.acquire(2, {stream}).error().code, Code::abandoned);
  std::size_t lost = 0;
  for (const SlotsReport& each : layers.report().slots) lost += each.lost;
  EXPECT_EQ(lost, 1U);
  fake_->hang(0, 0);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(LayersInOrder, a_stream_that_is_captured_has_no_part_in_it) {
  Layers layers = open(16 * slot);
  GraphCapture capture;
  EXPECT_TRUE(layers.acquire(0, {capture.stream()}).ok());
  EXPECT_TRUE(capture.works());
}

TEST_F(LayersInOrder, a_gpu_error_is_told) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  for (const char* call : {"cuMemcpyHtoDAsync_v2", "cuMemcpy2DAsync_v2", "cuLaunchKernel"}) {
    fake_->fail_call(call, 1, cuda::cu_invalid_value, 1);
  }
  EXPECT_EQ(layers.acquire(1, {stream}).error().code, Code::device_error);
  fake_->clear_injections();
  EXPECT_TRUE(layers.acquire(1, {stream}).ok());
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(LayersInOrder, a_forked_child_is_refused_and_the_parents_streams_go_on) {
  if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  const auto tensors = layers.acquire(1, {stream});
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  const Seen seen(*this, tensors->front(), stream);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const bool closed = layers.acquire(1, {stream}).error().code == Code::closed &&
                        layers.acquire(2, {stream}).error().code == Code::closed &&
                        layers.check().error().code == Code::closed &&
                        layers.release(1, {stream}).error().code == Code::closed;
    layers = Layers();
    ::_exit(closed ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(is_right(layers, 1, seen));
  EXPECT_TRUE(layers.release(1, {stream}).ok());
}

}  // namespace
}  // namespace penstock::test
