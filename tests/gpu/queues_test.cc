// Kernels that read stores by themselves, on a real GPU: the fake driver runs no kernels of others.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "gpu_test.h"
#include "penstock/gpu_queues.h"
#include "services/gpu_queues/server.h"
#include "support/environment.h"
#include "support/queue_faults.h"

extern "C" const char penstock_queue_kernels[];

namespace penstock::test {
namespace {

using device::IoStatus;

// As in queue_kernels.cu.
constexpr std::uint64_t word_factor = 0x9e3779b97f4a7c15ULL;
struct KernelJob {
  std::uint64_t queues, memory, counts, store_bytes, most_bytes;
  std::uint32_t rounds, way;
};
enum class Way : std::uint32_t { thread, ahead, warp, block, in_place };
using QueueCounts = std::array<std::uint64_t, 16>;

class GpuQueuesOnGpu : public GpuTest {
 protected:
  static constexpr std::uint64_t store_size_bytes = 8 * mib;
  static constexpr std::uint64_t most_bytes = 64 << 10;

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    if (fake_) GTEST_SKIP() << "the fake driver runs no kernels of others";
    if (penstock_queue_kernels[0] == '\0') GTEST_SKIP() << "built without nvcc";
    context_.emplace(make_context());
    ASSERT_TRUE(context_->prepare(Domain::cuda(0)).ok());
    const cuda::Current current(gpu());
    ASSERT_EQ(driver_->api().module_load_data(&module_, penstock_queue_kernels), cuda::cu_success);
    stream_ = make_stream(cuda::cu_stream_non_blocking);
    memory_.resize(store_size_bytes);
    for (std::uint64_t i = 0; i < store_size_bytes / 8; ++i) {
      const std::uint64_t word = i * word_factor;
      std::memcpy(memory_.data() + 8 * i, &word, sizeof word);
    }
    counts_ = context_->allocate(Domain::cuda(0), sizeof(QueueCounts)).value();
  }
  void TearDown() override {
    set_.reset();
    if (server_) server_->close();
    server_.reset();
    if (module_ != nullptr) {
      const cuda::Current current(gpu());
      driver_->api().stream_destroy(stream_);
      driver_->api().module_unload(module_);
    }
    GpuTest::TearDown();
  }

  void start(gpu_queues::FaultPlan faults = {}) {
    server_ = gpu_queues::Server::start(*context_, {.threads = 4}, std::move(faults)).value();
  }
  GpuStore memory(bool writable = false) {
    return {.memory = Region::host(memory_.data(), memory_.size()), .writable = writable};
  }
  GpuStore file() {
    write_file(folder_.path("store"), memory_);
    return {.store = context_->open(folder_.path("store")).value()};
  }
  void open(const GpuStore& store, double timeout_seconds = 20) {
    auto set = server_->open({.stores = {store},
                              .depth = 64,
                              .ahead_places = 64,
                              .timeout_seconds = timeout_seconds,
                              .stall_seconds = 2 * timeout_seconds});
    ASSERT_TRUE(set.ok()) << set.error().message;
    set_ = std::move(*set);
  }

  struct Grid {
    unsigned blocks = 32, threads = 128;
  };
  // Puts a kernel on the stream; what it counts is there when it has ended.
  void launch(const char* name, Grid grid, std::uint32_t rounds = 4, Way way = Way::thread) {
    const std::uint64_t most = way == Way::in_place ? 4096 : most_bytes;
    const std::uint64_t teams = way == Way::block  ? grid.blocks
                                : way == Way::warp ? grid.blocks * grid.threads / 32
                                                   : grid.blocks * grid.threads;
    area_ = context_->allocate(Domain::cuda(0), teams * (most + 128)).value();
    fill(counts_.region(), std::vector<std::byte>(sizeof(QueueCounts)));
    KernelJob job{reinterpret_cast<std::uint64_t>(set_->handle()),
                  reinterpret_cast<std::uint64_t>(area_.data()),
                  reinterpret_cast<std::uint64_t>(counts_.data()),
                  store_size_bytes,
                  most,
                  rounds,
                  static_cast<std::uint32_t>(way)};
    const cuda::Current current(gpu());
    cuda::CuFunction function = nullptr;
    ASSERT_EQ(driver_->api().module_get_function(&function, module_, name), cuda::cu_success);
    void* parameters[] = {&job};
    ASSERT_EQ(
        driver_->api().launch_kernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream_, parameters, nullptr),
        cuda::cu_success);
  }
  QueueCounts finish() {
    const cuda::Current current(gpu());
    EXPECT_EQ(driver_->api().stream_synchronize(stream_), cuda::cu_success);
    QueueCounts counts;
    const auto bytes = bytes_of(counts_.region());
    std::memcpy(counts.data(), bytes.data(), sizeof counts);
    EXPECT_EQ(counts[wrong], 0U) << "operations with wrong bytes, and " << counts[11]
                                 << " guards that were overwritten; one: team " << counts[12] << ", offset "
                                 << counts[13] << ", " << (counts[14] >> 32) << " bytes, word "
                                 << (counts[14] & 0xffffffff);
    return counts;
  }
  static std::uint64_t count_of(const QueueCounts& counts, IoStatus status) {
    return counts[static_cast<std::size_t>(status)];
  }
  static constexpr std::size_t wrong = 15;

  std::optional<Context> context_;
  cuda::CuModule module_ = nullptr;
  cuda::CuStream stream_ = nullptr;
  std::vector<std::byte> memory_;
  Buffer counts_;
  Buffer area_;
  std::shared_ptr<gpu_queues::Server> server_;
  std::shared_ptr<gpu_queues::Set> set_;
};

TEST_F(GpuQueuesOnGpu, bring_each_thread_warp_and_block_its_bytes) {
  start();
  for (const bool is_file : {false, true}) {
    open(is_file ? file() : memory());
    for (const Way way : {Way::thread, Way::ahead, Way::warp, Way::block, Way::in_place}) {
      launch("penstock_read_at_random", {}, 4, way);
      const QueueCounts counts = finish();
      const std::uint64_t teams = way == Way::block ? 32 : way == Way::warp ? 32 * 4 : 32 * 128;
      EXPECT_EQ(count_of(counts, IoStatus::done), 4 * teams) << "way " << static_cast<int>(way);
    }
  }
}

TEST_F(GpuQueuesOnGpu, serve_warps_with_some_threads_missing_and_one_thread_alone) {
  start();
  open(memory());
  for (const unsigned threads : {1U, 7U, 33U, 250U}) {
    launch("penstock_read_at_random", {3, threads}, 4, Way::thread);
    EXPECT_EQ(count_of(finish(), IoStatus::done), 3U * threads * 4);
    launch("penstock_read_at_random", {3, threads}, 4, Way::block);
    EXPECT_EQ(count_of(finish(), IoStatus::done), 3U * 4);
  }
}

TEST_F(GpuQueuesOnGpu, write_what_reads_find_again) {
  start();
  open(memory(true));
  launch("penstock_write_and_read", {64, 128});
  EXPECT_EQ(count_of(finish(), IoStatus::done), 2U * 64 * 128);
  for (std::uint64_t i = 0; i < 64 * 128 * 64; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, memory_.data() + 8 * i, sizeof word);
    ASSERT_EQ(word, ~(i * word_factor));
  }
}

TEST_F(GpuQueuesOnGpu, are_exact_whatever_befalls_them) {
  std::atomic<std::uint64_t> number = 1;
  start([&](const nvme::Command&) { return drawn_fault(number.fetch_add(1)); });
  open(memory());
  for (const Way way : {Way::thread, Way::ahead, Way::warp, Way::in_place}) {
    const unsigned blocks = way == Way::warp ? 200 : 25;
    launch("penstock_read_at_random", {blocks, 128}, way == Way::thread ? 16 : 8, way);
    const QueueCounts counts = finish();
    EXPECT_GT(count_of(counts, IoStatus::done), 0U);
    EXPECT_GT(count_of(counts, IoStatus::failed), 0U);
    EXPECT_EQ(count_of(counts, IoStatus::timed_out) + count_of(counts, IoStatus::stalled), 0U);
  }
}

TEST_F(GpuQueuesOnGpu, end_waits_for_commands_that_were_lost_and_work_again) {
  std::atomic<std::uint64_t> commands = 0;
  start([&](const nvme::Command&) {
    return commands.fetch_add(1) == 100 ? gpu_queues::Fault::lose : gpu_queues::Fault::none;
  });
  open(memory(), 0.5);
  launch("penstock_read_at_random", {32, 128}, 1);
  const QueueCounts counts = finish();
  EXPECT_GE(count_of(counts, IoStatus::timed_out), 1U);
  EXPECT_TRUE(set_->report().timed_out);
  ASSERT_TRUE(server_->reset(*set_).ok());
  launch("penstock_read_at_random", {32, 128}, 1);
  EXPECT_EQ(count_of(finish(), IoStatus::done), 32U * 128);
}

TEST_F(GpuQueuesOnGpu, outlive_a_thread_of_the_server) {
  std::atomic<std::uint64_t> commands = 0;
  start([&](const nvme::Command&) {
    return commands.fetch_add(1) == 100 ? gpu_queues::Fault::end_thread : gpu_queues::Fault::none;
  });
  open(memory(), 0.5);
  launch("penstock_read_at_random", {32, 128}, 1);
  EXPECT_GE(count_of(finish(), IoStatus::timed_out), 1U);
  EXPECT_TRUE(server_->is_dead());
  ASSERT_TRUE(server_->reset(*set_).ok());
  launch("penstock_read_at_random", {32, 128}, 1);
  EXPECT_EQ(count_of(finish(), IoStatus::done), 32U * 128);
}

TEST_F(GpuQueuesOnGpu, say_what_is_wrong_with_an_extent_and_that_they_are_closed) {
  start();
  open(memory());
  launch("penstock_ask_for_what_is_not_there", {2, 64});
  const QueueCounts counts = finish();
  constexpr std::uint64_t each = 2 * 64 / 8;
  EXPECT_EQ(count_of(counts, IoStatus::done), 2 * each);
  EXPECT_EQ(count_of(counts, IoStatus::out_of_window), 2 * each);
  EXPECT_EQ(count_of(counts, IoStatus::misaligned), each);
  EXPECT_EQ(count_of(counts, IoStatus::no_such_store), each);
  EXPECT_EQ(count_of(counts, IoStatus::read_only), each);
  EXPECT_EQ(count_of(counts, IoStatus::no_memory), each);
  ASSERT_TRUE(set_->stop().ok());
  launch("penstock_read_at_random", {2, 64}, 1);
  EXPECT_EQ(count_of(finish(), IoStatus::closed), 2U * 64);
}

TEST_F(GpuQueuesOnGpu, refuse_a_kernel_of_another_layout) {
  start();
  open(memory());
  const std::uint32_t other = device::layout_version + 1;
  fill({reinterpret_cast<std::byte*>(set_->handle()), sizeof other, Domain::cuda(0)},
       std::as_bytes(std::span(&other, 1)));
  launch("penstock_read_at_random", {2, 64}, 1);
  EXPECT_EQ(count_of(finish(), IoStatus::wrong_layout), 2U * 64);
}

// A kernel that has the GPU for itself for a while: ordinary loads go on, sets come and go, and it ends when it is
// told.
TEST_F(GpuQueuesOnGpu, serve_a_kernel_that_runs_until_it_is_told_to_stop_beside_ordinary_loads) {
  start();
  open(file());
  launch("penstock_until_closed", {264, 256});
  const std::chrono::seconds duration(from_environment("PENSTOCK_KERNEL_SECONDS", 3));
  const auto end = std::chrono::steady_clock::now() + duration;
  const Store store = context_->open(folder_.path("store")).value();
  std::uint64_t loads = 0;
  while (std::chrono::steady_clock::now() < end) {
    Buffer buffer = context_->allocate(Domain::cuda(0), store_size_bytes).value();
    ASSERT_TRUE(context_->read(store, 0, buffer.region()).ok());
    ASSERT_TRUE(same_bytes(bytes_of(buffer.region()), memory_));
    auto other = server_->open({.stores = {memory()}, .queues = 4}).value();
    server_->close(other);
    ++loads;
  }
  EXPECT_GT(loads, 3U);
  ASSERT_TRUE(set_->stop().ok());
  const QueueCounts counts = finish();
  EXPECT_GT(count_of(counts, IoStatus::done), 264U * 256);
  EXPECT_EQ(count_of(counts, IoStatus::timed_out), 0U);
  ASSERT_TRUE(server_->reset(*set_).ok());
  launch("penstock_read_at_random", {32, 128}, 1);
  EXPECT_EQ(count_of(finish(), IoStatus::done), 32U * 128);
}

// What the program does, over any driver.
class GpuQueuesOfProgram : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    context_.emplace(make_context());
    server_ = GpuServer::start(*context_, {.threads = 2}).value();
    memory_ = content(1, 0, mib);
  }
  Result<GpuQueues> open() {
    return server_.open({.stores = {{.memory = Region::host(memory_.data(), memory_.size())}}, .queues = 3});
  }
  device::QueueSet set_of(const GpuQueues& queues) {
    device::QueueSet set;
    const auto bytes = bytes_of({reinterpret_cast<std::byte*>(queues.handle()), sizeof set, Domain::cuda(0)});
    std::memcpy(&set, bytes.data(), sizeof set);
    return set;
  }
  nvme::QueuePairState state_of(const GpuQueues& queues, std::uint32_t number) {
    nvme::QueuePairState state;
    auto* const address = reinterpret_cast<std::byte*>(set_of(queues).queues + number);
    const auto bytes = bytes_of({address, sizeof state, Domain::cuda(0)});
    std::memcpy(&state, bytes.data(), sizeof state);
    return state;
  }

  std::optional<Context> context_;
  GpuServer server_;
  std::vector<std::byte> memory_;
};

TEST_F(GpuQueuesOfProgram, lie_in_memory_of_the_gpu_as_kernels_expect_them) {
  const GpuQueues queues = open().value();
  const device::QueueSet set = set_of(queues);
  EXPECT_EQ(set.layout, device::layout_version);
  EXPECT_EQ(set.queue_count, 3U);
  EXPECT_EQ(set.timeout_ns, 10'000'000'000U);
  const nvme::QueuePairState state = state_of(queues, 2);
  EXPECT_EQ(state.memory.id, 3);
  EXPECT_EQ(state.memory.entries, 128U);
  EXPECT_EQ(state.poison, 0U);
  device::StoreWindow window;
  const auto bytes = bytes_of(
      {const_cast<std::byte*>(reinterpret_cast<const std::byte*>(set.stores)), sizeof window, Domain::cuda(0)});
  std::memcpy(&window, bytes.data(), sizeof window);
  EXPECT_EQ(window.end, mib);
}

TEST_F(GpuQueuesOfProgram, are_stopped_and_reset_by_words_in_memory_of_the_gpu) {
  GpuQueues queues = open().value();
  ASSERT_TRUE(queues.stop().ok());
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(state_of(queues, i).poison, static_cast<std::uint32_t>(nvme::Poison::deleted));
  }
  ASSERT_TRUE(queues.reset().ok());
  EXPECT_EQ(state_of(queues, 2).poison, 0U);
}

TEST_F(GpuQueuesOfProgram, free_nothing_while_they_are_open) {
  PENSTOCK_NEEDS_FAKE();
  GpuQueues queues = open().value();
  const std::uint64_t before = fake_->calls("cuMemHostUnregister");
  { const Buffer pinned = context_->allocate(Domain::pinned(), mib).value(); }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(fake_->calls("cuMemHostUnregister"), before);
  queues.close();
  EXPECT_TRUE(eventually([&] { return fake_->calls("cuMemHostUnregister") > before; }));
}

TEST_F(GpuQueuesOfProgram, say_so_after_a_sticky_error) {
  PENSTOCK_NEEDS_FAKE();
  GpuQueues queues = open().value();
  fake_->fail_copy(0, 1, cuda::cu_illegal_address);
  EXPECT_EQ(queues.stop().error().code, Code::device_lost);
  EXPECT_EQ(queues.reset().error().code, Code::device_lost);
  EXPECT_EQ(open().error().code, Code::device_lost);
  queues.close();
  fake_->clear_injections();
}

}  // namespace
}  // namespace penstock::test
