// A GPU that the program keeps busy: with a kernel that runs for hours, or a captured graph that waits for the program.
// Freeing, unregistering and loading of modules would wait for that, and hold up all else.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>

#include "cuda/control_memory.h"
#include "cuda/quiet.h"
#include "gpu/stream_order_test.h"
#include "penstock/cuda.h"
#include "support/graph_capture.h"

namespace penstock::test {
namespace {

using namespace std::chrono_literals;
using cuda::ControlMemory;

// A stream that waits for a word: to the driver that is the same as a kernel that runs until then.
class Work {
 public:
  // By a graph that was captured, or by itself.
  Work(cuda::Device& gpu, cuda::CuStream stream, bool as_graph)
      : cell_(ControlMemory::of_process().take(gpu, sizeof(Word)).value()), value_(word() + 1) {
    EXPECT_EQ(cuda_.api.context_push(gpu.context()), cuda::cu_success);
    const auto wait = [&] {
      EXPECT_EQ(cuda_.api.stream_wait_value(stream, cell_.device, value_, cuda::cu_wait_value_geq), cuda::cu_success);
    };
    if (!as_graph) {
      wait();
    } else {
      const cuda::CaptureApi& captures = cuda_.captures;
      cuda::CuGraph graph = nullptr;
      EXPECT_EQ(captures.begin(stream, cuda::cu_capture_mode_thread_local), cuda::cu_success);
      wait();
      EXPECT_EQ(captures.end(stream, &graph), cuda::cu_success);
      EXPECT_EQ(captures.instantiate(&executable_, graph, 0), cuda::cu_success);
      EXPECT_EQ(captures.destroy(graph), cuda::cu_success);
      EXPECT_EQ(captures.launch(executable_, stream), cuda::cu_success);
    }
    cuda::CuContext popped = nullptr;
    EXPECT_EQ(cuda_.api.context_pop(&popped), cuda::cu_success);
    // A test that fails should not hang.
    watch_ = std::thread([this] {
      for (int i = 0; i < 6000 && !has_ended_; ++i) std::this_thread::sleep_for(10ms);
      word() = value_;
    });
  }
  ~Work() {
    end();
    watch_.join();
    if (executable_ != nullptr) cuda_.captures.destroy_executable(executable_);
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  void end() {
    has_ended_ = true;
    word() = value_;
    held_.reset();
  }
  bool is_running() const { return !has_ended_; }

 private:
  using Word = std::atomic<std::uint32_t>;

  Word& word() const { return *reinterpret_cast<Word*>(cell_.host); }

  std::optional<HeldFrees> held_ = HeldFrees::begin().value();
  const PlainCuda cuda_;
  const ControlMemory::Cell cell_;  // for ever: the stream may look at it later
  const std::uint32_t value_;
  cuda::CuGraphExecutable executable_ = nullptr;
  std::atomic<bool> has_ended_ = false;
  std::thread watch_;
};

class BusyGpu : public InStreamOrder, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    InStreamOrder::SetUp();
    if (IsSkipped()) return;
    if (gpu().api().stream_wait_value == nullptr) GTEST_SKIP() << "the driver has no waits";
    cuda::Quiet::of_process().catch_up(10s);  // of other tests
    if (fake_) fake_->set_connections(0);
  }
  void TearDown() override {
    if (!IsSkipped()) {
      EXPECT_TRUE(eventually([] { return cuda::Quiet::of_process().unfreed().calls == 0; }));
    }
    InStreamOrder::TearDown();
  }

  std::unique_ptr<Work> begin_work() {
    return std::make_unique<Work>(gpu(), make_stream(cuda::cu_stream_non_blocking), GetParam());
  }

  void expect_reads(const Context& context) {
    const Store store = context.open(folder_.path("file")).value();
    const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
    const Report report = context.read(store, 0, memory.region());
    ASSERT_TRUE(report.ok()) << report.error->message;
    EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
  }
};

INSTANTIATE_TEST_SUITE_P(With, BusyGpu, testing::Bool(), [](const auto& test) {
  return test.param ? std::string("a_captured_graph_that_waits") : std::string("a_kernel_that_runs_for_hours");
});

TEST_P(BusyGpu, serves_requests_and_frees_memory_when_it_has_time) {
  std::optional<Context> context = make_context();
  Buffer large = context->allocate(Domain::cuda(0), 64 * mib).value();
  Buffer pinned = context->allocate(Domain::pinned(), mib).value();
  const std::unique_ptr<Work> work = begin_work();
  expect_reads(*context);  // by lanes that get their staging memory now
  const auto begun = std::chrono::steady_clock::now();
  large = Buffer();
  pinned = Buffer();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
  EXPECT_GE(context->statistics().unfreed_calls, 2U);
  EXPECT_GE(context->statistics().unfreed_device_bytes, 64 * mib);
  EXPECT_EQ(context->statistics().unfreed_pinned_bytes, mib);
  expect_reads(*context);
  context.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 20s);
  Context another = make_context();
  expect_reads(another);
  EXPECT_GT(another.statistics().unfreed_calls, 2U);
  EXPECT_TRUE(work->is_running());
  work->end();
  EXPECT_TRUE(eventually([&] { return another.statistics().unfreed_calls == 0; }));
  EXPECT_EQ(another.statistics().unfreed_pinned_bytes, 0U);
  EXPECT_EQ(another.statistics().unfreed_device_bytes, 0U);
}

TEST_P(BusyGpu, serves_requests_in_stream_order) {
  if (!fake_ && std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") != nullptr) {
    GTEST_SKIP() << "the stream stands behind the work in its hardware queue";
  }
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), 4 * mib).value();
  const std::unique_ptr<Work> work = begin_work();
  cuda::CuStream stream = make_stream(cuda::cu_stream_non_blocking);
  const Ticket ticket = read_in_order(context, store, memory.region(), stream).value();
  ASSERT_TRUE(ticket.wait_for(20s));
  EXPECT_EQ(ticket.outcome(), Outcome::done) << ticket.report().error->message;
  EXPECT_EQ(wait_for(stream), cuda::cu_success);
  EXPECT_TRUE(holds_content(bytes_of(memory.region()), 1, 0));
  EXPECT_TRUE(work->is_running());
}

TEST_P(BusyGpu, a_spent_budget_is_told_with_what_waits_to_be_freed) {
  options_.device_budget_bytes = 64 * mib;
  options_.lanes = 1;
  options_.staging_slot_bytes = mib;
  options_.staging_slots_per_lane = 1;
  options_.pinned_budget_bytes = 16 * mib;
  Context context = make_context();
  Buffer device = context.allocate(Domain::cuda(0), 40 * mib).value();
  Buffer pinned = context.allocate(Domain::pinned(), 10 * mib).value();
  const std::unique_ptr<Work> work = begin_work();
  device = Buffer();
  pinned = Buffer();
  const auto again = [&](Domain domain, std::size_t bytes) { return context.allocate(domain, bytes); };
  for (const auto& [domain, bytes] : {std::pair{Domain::cuda(0), 48 * mib}, std::pair{Domain::pinned(), 12 * mib}}) {
    const auto refused = again(domain, bytes);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::over_budget);
    EXPECT_NE(refused.error().message.find("can't be freed before a GPU has finished"), std::string::npos)
        << refused.error().message;
  }
  work->end();
  EXPECT_TRUE(eventually([&] { return again(Domain::cuda(0), 48 * mib).ok(); }));
  EXPECT_TRUE(eventually([&] { return again(Domain::pinned(), 12 * mib).ok(); }));
}

TEST_P(BusyGpu, contexts_that_come_and_go_leave_no_more_pinned_memory_than_one_may_have) {
  options_.lanes = 1;
  options_.staging_slot_bytes = mib;
  options_.staging_slots_per_lane = 4;
  options_.pinned_budget_bytes = 16 * mib;
  const std::unique_ptr<Work> work = begin_work();
  for (int i = 0; i < 8; ++i) {
    Context context = make_context();
    expect_reads(context);
  }
  EXPECT_GT(cuda::Quiet::of_process().unfreed().pinned_bytes, 0U);
  EXPECT_LE(cuda::Quiet::of_process().unfreed().pinned_bytes, 16 * mib);
}

}  // namespace
}  // namespace penstock::test
