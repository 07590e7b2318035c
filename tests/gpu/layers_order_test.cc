// Groups of tensors that are acquired in the order of a stream.
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/quiet.h"
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
  testing::AssertionResult is_told(const Status& status, Code code, const std::string& text) const {
    if (status.ok()) return testing::AssertionFailure() << "no error";
    if (status.error().code == code && status.error().message.find(text) != std::string::npos) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << status.error().message;
  }
  // Whether a mark behind all that is on the stream is not reached.
  bool is_busy(cuda::CuStream stream) const {
    return !CudaMark::put(Domain::cuda(0), {stream}).value().reached().value();
  }

  std::shared_ptr<Gate> disk_ = std::make_shared<Gate>("model");
  std::optional<Context> plain_;
  std::optional<LayeredModel> model_;
  std::optional<Context> context_;
};

TEST_F(LayersInOrder, acquire_returns_before_the_load_and_the_stream_sees_the_bytes) {
  Layers layers = open(4 * slot);
  disk_->close();
  for (const cuda::CuStream stream : {make_stream(), make_stream(cuda::cu_stream_non_blocking), cuda::CuStream{}}) {
    const auto tensors = layers.acquire(1, {stream});
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    const Seen seen(*this, tensors->front(), stream);
    EXPECT_TRUE(is_busy(stream));
    EXPECT_FALSE(layers.report().groups[1].is_loaded);
    disk_->open();
    ASSERT_EQ(wait_for(stream), cuda::cu_success);
    EXPECT_TRUE(is_right(layers, 1, seen));
    EXPECT_TRUE(layers.check().ok());
    EXPECT_TRUE(layers.release(1, {stream}).ok());
    layers = open(4 * slot);
    disk_->close();
  }
}

TEST_F(LayersInOrder, what_is_acquired_and_released_before_its_load_has_ended_is_counted_as_the_streams_wait) {
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->close();
  std::vector<Seen> seen;
  for (std::size_t i = 0; i < 3; ++i) {
    seen.emplace_back(*this, layers.acquire(i, {stream}).value().front(), stream);
    ASSERT_TRUE(layers.release(i, {stream}).ok());
  }
  LayersReport report = layers.report();
  EXPECT_EQ(report.all.stream_waits, 3U);
  EXPECT_EQ(report.all.waits, 0U);
  EXPECT_EQ(report.all.held, 0U);
  EXPECT_EQ(report.all.loads, 0U);
  disk_->open();
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(is_right(layers, i, seen[i]));
  EXPECT_TRUE(layers.check().ok());
  report = layers.report();
  EXPECT_EQ(report.all.unserved, 0U);
}

TEST_F(LayersInOrder, for_a_group_that_is_there_nothing_is_put_on_the_stream) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  ASSERT_TRUE(layers.acquire(0).ok());
  const std::uint64_t waits = fake_->calls("cuStreamWaitValue32_v2");
  const std::uint64_t events = fake_->calls("cuEventRecord");
  ASSERT_TRUE(layers.acquire(0, {stream}).ok());
  EXPECT_EQ(fake_->calls("cuStreamWaitValue32_v2"), waits);
  EXPECT_EQ(fake_->calls("cuEventRecord"), events);
  EXPECT_EQ(layers.report().groups[0].hits, 1U);
  EXPECT_EQ(layers.report().groups[0].stream_waits, 0U);
}

TEST_F(LayersInOrder, threads_and_streams_share_one_load) {
  Layers layers = open(4 * slot);
  disk_->close();
  std::vector<cuda::CuStream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(make_stream(cuda::cu_stream_non_blocking));
  std::vector<std::optional<Seen>> seen(streams.size());
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
  disk_->open();
  waits.join();
  for (std::size_t i = 0; i < streams.size(); ++i) {
    ASSERT_EQ(wait_for(streams[i]), cuda::cu_success);
    EXPECT_TRUE(is_right(layers, 2, *seen[i]));
  }
  const GroupReport report = layers.report().groups[2];
  EXPECT_EQ(report.loads, 1U);
  EXPECT_EQ(report.stream_waits, streams.size());
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

TEST_F(LayersInOrder, a_load_that_fails_lets_the_stream_go_on_and_is_told_by_release) {
  Layers layers = open(4 * slot);
  const cuda::CuStream streams[] = {make_stream(), make_stream()};
  disk_->close();
  ASSERT_TRUE(layers.acquire(1, {streams[0]}).ok());
  ASSERT_TRUE(layers.acquire(1, {streams[1]}).ok());
  disk_->fail();
  for (const cuda::CuStream stream : streams) EXPECT_EQ(wait_for(stream), cuda::cu_success);
  const std::string told = "work on a stream ran without group \"model.layers.1\"";
  EXPECT_TRUE(is_told(layers.check(), Code::io_error, told)) << "somebody still holds it";
  const auto another = layers.acquire(1);
  ASSERT_FALSE(another.ok());
  EXPECT_EQ(another.error().code, Code::io_error);
  EXPECT_TRUE(is_told(layers.release(1, {streams[0]}), Code::io_error, told));
  EXPECT_TRUE(is_told(layers.release(1, {streams[1]}), Code::io_error, told));
  EXPECT_EQ(layers.release(1).error().code, Code::invalid_argument) << "both were released";
  EXPECT_TRUE(layers.check().ok()) << "it was told";
  disk_->open();
  // One ahead may have begun before that, and fails now or later: that is told, too.
  bool is_served = false;
  for (int i = 0; i < 10 && !is_served; ++i) {
    const auto again = layers.acquire(1, {streams[0]});
    if (!again.ok()) continue;
    const Seen seen(*this, again->front(), streams[0]);
    EXPECT_EQ(wait_for(streams[0]), cuda::cu_success);
    is_served = layers.release(1, {streams[0]}).ok();
    EXPECT_TRUE(!is_served || is_right(layers, 1, seen));
  }
  EXPECT_TRUE(is_served);
  const GroupReport report = layers.report().groups[1];
  EXPECT_GE(report.failed_loads, 1U);
  EXPECT_GE(report.unserved, 2U);
  EXPECT_EQ(report.stream_waits, report.unserved + 1);
}

TEST_F(LayersInOrder, a_load_that_fails_after_the_release_is_told_by_check_or_the_next_acquire_once) {
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  for (const bool by_check : {true, false}) {
    disk_->close();
    ASSERT_TRUE(layers.acquire(1, {stream}).ok());
    ASSERT_TRUE(layers.release(1, {stream}).ok());
    EXPECT_TRUE(layers.check().ok()) << "it has not failed yet";
    disk_->fail();
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
    if (by_check) {
      EXPECT_TRUE(is_told(layers.check(), Code::io_error, "\"model.layers.1\""));
    } else {
      const auto told = layers.acquire(1, {stream});
      ASSERT_FALSE(told.ok());
      EXPECT_EQ(told.error().code, Code::io_error);
    }
    EXPECT_TRUE(layers.check().ok());
    disk_->open();
    ASSERT_TRUE(layers.acquire(1).ok()) << "the next one tries again";
    EXPECT_TRUE(layers.release(1).ok());
    layers = open(4 * slot);
  }
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

TEST_F(LayersInOrder, memory_of_a_load_that_failed_is_used_again_when_the_stream_has_passed_it) {
  Layers layers = open(2 * slot);
  const std::size_t slots = layers.report().slots.back().slots;
  const cuda::CuStream stream = make_stream();
  disk_->close();
  for (std::size_t i = 0; i < slots; ++i) ASSERT_TRUE(layers.acquire(i, {stream}).ok());
  Blocker kernels(gpu(), stream);
  for (std::size_t i = 0; i < slots; ++i) ASSERT_TRUE(layers.release(i, {stream}).ok());
  disk_->fail();
  ASSERT_TRUE(eventually([&] { return layers.report().all.failed_loads == slots; }));
  disk_->open();
  const std::uint64_t before = disk_->counts().ended;
  std::atomic<bool> is_there{false};
  std::jthread other([&] { is_there = layers.acquire(6, {make_stream()}).ok(); });
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(disk_->counts().ended, before);
  EXPECT_FALSE(is_there);
  kernels.let_go();
  other.join();
  EXPECT_TRUE(is_there);
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

TEST_F(LayersInOrder, a_load_that_takes_longer_than_the_deadline_is_the_streams_matter) {
  Layers layers = open(4 * slot, 0.05);
  const cuda::CuStream stream = make_stream();
  disk_->close();
  const auto tensors = layers.acquire(3, {stream});
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  const Seen seen(*this, tensors->front(), stream);
  EXPECT_EQ(layers.acquire(3).error().code, Code::timed_out) << "who waits for it himself is told";
  disk_->open();
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(is_right(layers, 3, seen));
}

TEST_F(LayersInOrder, closing_waits_for_loads_that_streams_wait_for) {
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->close();
  const Seen seen(*this, layers.acquire(2, {stream}).value().front(), stream);
  ASSERT_TRUE(layers.release(2, {stream}).ok());
  const std::vector<std::size_t> hints = {4};
  ASSERT_TRUE(layers.hint(hints).ok());
  Status status = Error{};
  std::jthread closing([&] { status = layers.close(); });
  ASSERT_TRUE(eventually([&] { return !layers.hint(hints).ok(); })) << "it is being closed";
  disk_->open();
  closing.join();
  EXPECT_TRUE(status.ok()) << status.error().message;
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(model_->holds(seen.bytes(), layers.groups()[2].tensors[0]));
}

TEST_F(LayersInOrder, closing_gives_up_a_load_in_time_and_tells_it_and_the_stream_goes_on) {
  options_.deadlines.cancel_grace_seconds = 0.1;
  options_.deadlines.close_seconds = 0.2;
  open_context();
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->close();
  ASSERT_TRUE(layers.acquire(2, {stream}).ok());
  ASSERT_TRUE(layers.release(2, {stream}).ok());
  EXPECT_TRUE(is_told(layers.close(), Code::cancelled,
                      "group \"model.layers.2\", which was not there: the Layers were closed"));
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(layers.check().ok()) << "it was told";
  EXPECT_EQ(layers.acquire(2, {stream}).error().code, Code::closed);
}

TEST_F(LayersInOrder, are_destroyed_while_groups_are_held_and_streams_wait) {
  options_.deadlines.cancel_grace_seconds = 0.1;
  options_.deadlines.close_seconds = 0.2;
  open_context();
  const cuda::CuStream stream = make_stream();
  for (int i = 0; i < 3; ++i) {
    Layers layers = open(16 * slot);
    disk_->close();
    ASSERT_TRUE(layers.acquire(2, {stream}).ok());
    ASSERT_TRUE(layers.acquire(3, {stream}).ok());
    layers = Layers();
    EXPECT_EQ(wait_for(stream), cuda::cu_success);
    disk_->open();
  }
}

TEST_F(LayersInOrder, an_operation_that_never_comes_back_ends_the_streams_wait_and_costs_its_slot) {
  options_.deadlines.stall_seconds = 0.2;
  options_.deadlines.cancel_grace_seconds = 0.05;
  open_context();
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  ASSERT_TRUE(layers.acquire(0, {stream}).ok());
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
  PENSTOCK_NEEDS_FAKE();
  fake_->hang(0, 1);
  ASSERT_TRUE(layers.acquire(2, {stream}).ok());
  ASSERT_TRUE(eventually([&] { return layers.report().all.failed_loads == 1; }));
  const Status told = layers.release(2, {stream});
  ASSERT_FALSE(told.ok());
  EXPECT_EQ(told.error().code, Code::abandoned) << told.error().message;
  std::size_t lost = 0;
  for (const SlotsReport& each : layers.report().slots) lost += each.lost;
  EXPECT_EQ(lost, 1U);
  fake_->hang(0, 0);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(LayersInOrder, a_stream_that_was_destroyed_is_refused_or_takes_its_wait_with_it) {
  Layers layers = open(16 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->close();
  ASSERT_TRUE(layers.acquire(0, {stream}).ok());
  ASSERT_TRUE(layers.release(0, {stream}).ok());
  {
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().stream_destroy(stream), cuda::cu_success);
  }
  if (fake_) {  // a real driver need not notice
    const auto refused = layers.acquire(1, {stream});
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().hint, "");
    EXPECT_EQ(layers.report().all.held, 0U);
  }
  disk_->open();
  EXPECT_TRUE(eventually([&] { return layers.report().groups[0].loads == 1; }));
  ASSERT_TRUE(layers.acquire(1).ok()) << "the load goes on";
  EXPECT_TRUE(layers.check().ok());
}

TEST_F(LayersInOrder, a_stream_that_is_captured_is_refused_and_the_capture_goes_on) {
  Layers layers = open(16 * slot);
  ASSERT_TRUE(layers.acquire(0).ok());
  disk_->close();
  GraphCapture capture;
  EXPECT_TRUE(layers.acquire(0, {capture.stream()}).ok()) << "it is there";
  const auto refused = layers.acquire(1, {capture.stream()});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_NE(refused.error().message.find("captured"), std::string::npos);
  EXPECT_EQ(layers.report().groups[1].held, 0U);
  EXPECT_TRUE(capture.works());
  disk_->open();
}

TEST_F(LayersInOrder, a_gpu_error_is_told_and_the_stream_goes_on) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->close();
  ASSERT_TRUE(layers.acquire(1, {stream}).ok());
  fake_->fail_call("cuMemcpyHtoDAsync_v2", 1, cuda::cu_invalid_value, 1);
  fake_->fail_call("cuMemcpy2DAsync_v2", 1, cuda::cu_invalid_value, 1);
  fake_->fail_call("cuLaunchKernel", 1, cuda::cu_invalid_value, 1);
  disk_->open();
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(is_told(layers.release(1, {stream}), Code::device_error, "\"model.layers.1\""));
  fake_->clear_injections();
  EXPECT_TRUE(layers.acquire(1, {stream}).ok());
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
}

TEST_F(LayersInOrder, a_stream_that_can_not_be_made_to_wait_is_the_error_and_the_group_is_not_held) {
  PENSTOCK_NEEDS_FAKE();
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->close();
  fake_->fail_call("cuStreamWaitValue32_v2", 1, cuda::cu_invalid_value, 0);
  const auto failed = layers.acquire(1, {stream});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, Code::device_error) << failed.error().message;
  EXPECT_EQ(layers.report().groups[1].held, 0U);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  disk_->fail();
  ASSERT_TRUE(eventually([&] { return layers.report().all.failed_loads == 1; }));
  EXPECT_TRUE(layers.check().ok()) << "no stream ran without it";
  EXPECT_EQ(layers.report().all.unserved, 0U);
  disk_->open();
}

TEST_F(LayersInOrder, where_no_stream_may_begin_to_wait_the_caller_waits) {
  Layers layers = open(4 * slot);
  std::atomic<bool> is_over{false};
  std::atomic<bool> has_begun{false};
  std::jthread frees([&] {
    cuda::Quiet::of_process().run([&] {  // as a call that takes longer than anybody waits for it
      has_begun = true;
      while (!is_over) std::this_thread::sleep_for(1ms);
    });
  });
  ASSERT_TRUE(eventually([&] { return has_begun.load(); }));
  const auto tensors = layers.acquire(1, {make_stream()});
  is_over = true;
  ASSERT_TRUE(tensors.ok()) << tensors.error().message;
  EXPECT_TRUE(model_->holds(bytes_of(tensors->front()), layers.groups()[1].tensors[0]));
  const GroupReport report = layers.report().groups[1];
  EXPECT_EQ(report.stream_waits + report.unserved, 0U);
  EXPECT_EQ(report.waits, 1U);
  EXPECT_EQ(report.held, 1U);
}

// The copy waits for the load in the only queue of the copy engine, and the load's comes behind it.
TEST_F(LayersInOrder, a_stream_that_stands_in_the_way_of_the_load_goes_on_and_that_is_told) {
  PENSTOCK_NEEDS_FAKE();
  fake_->set_connections(1);
  options_.deadlines.stream_seconds = 0.2;
  open_context();
  Layers layers = open(4 * slot);
  const Buffer other = context_->allocate(Domain::cuda(0), mib).value();
  Buffer pinned = context_->allocate(Domain::pinned(), mib).value();
  const cuda::CuStream stream = make_stream();
  disk_->close();
  ASSERT_TRUE(layers.acquire(1, {stream}).ok());
  {
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().copy_to_device(cuda::device_address(other.data()), pinned.data(), mib, stream),
              cuda::cu_success);
  }
  disk_->open();
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(is_told(layers.check(), Code::would_deadlock, "could not get past"));
  EXPECT_TRUE(is_told(layers.release(1, {stream}), Code::would_deadlock, "\"model.layers.1\""));
  EXPECT_TRUE(layers.check().ok());
  const auto again = layers.acquire(1, {stream});
  ASSERT_TRUE(again.ok()) << again.error().message;
  const Seen seen(*this, again->front(), stream);
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(is_right(layers, 1, seen)) << "the load itself went well";
  EXPECT_EQ(layers.report().groups[1].unserved, 1U);
  EXPECT_EQ(layers.report().groups[1].failed_loads, 0U);
}

TEST_F(LayersInOrder, a_forked_child_is_refused_and_the_parents_streams_go_on) {
  if (under_thread_sanitizer) GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  disk_->close();
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
  EXPECT_TRUE(is_busy(stream));
  disk_->open();
  ASSERT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(is_right(layers, 1, seen));
  EXPECT_TRUE(layers.release(1, {stream}).ok());
}

TEST_F(LayersInOrder, where_the_driver_can_not_make_a_stream_wait_the_caller_waits_and_it_is_said) {
  if (gpu().api().stream_wait_value != nullptr) GTEST_SKIP() << "this driver can";
  Layers layers = open(4 * slot);
  const cuda::CuStream stream = make_stream();
  testing::internal::CaptureStderr();
  for (std::size_t i = 0; i < layers.groups().size(); ++i) {
    const auto tensors = layers.acquire(i, {stream});
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_TRUE(model_->holds(bytes_of(tensors->front()), layers.groups()[i].tensors[0]));
    EXPECT_TRUE(layers.release(i, {stream}).ok());
  }
  const std::string said = testing::internal::GetCapturedStderr();
  const std::size_t first = said.find("cuStreamWaitValue32");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("cuStreamWaitValue32", first + 1), std::string::npos) << "once";
  EXPECT_EQ(layers.report().all.stream_waits, 0U);
  EXPECT_EQ(layers.report().all.waits, layers.groups().size());
}

}  // namespace
}  // namespace penstock::test
