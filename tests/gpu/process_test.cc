// What processes have to do with a GPU: forked children get errors, new processes begin anew.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cuda/stream_order.h"
#include "gpu/gpu_test.h"
#include "penstock/cuda.h"
#include "support/graph_capture.h"

namespace penstock::test {
namespace {

constexpr std::size_t written_bytes = 1 << 20;

constexpr const char* kernel_that_writes_nowhere = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry write_nowhere() {
  .reg .u64 %address;
  .reg .u32 %value;
  mov.u64 %address, 4096;
  mov.u32 %value, 1;
  st.global.u32 [%address], %value;
  ret;
}
)";

class GpuProcess : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) write_file(folder_.path("file"), content(1, 0, written_bytes));
  }

  Report load(const Context& context) {
    const Store store = context.open(folder_.path("file")).value();
    const auto memory = context.allocate(Domain::cuda(0), written_bytes);
    EXPECT_TRUE(memory.ok()) << memory.error().message;
    const Report report = context.read(store, 0, memory->region());
    if (report.ok()) {
      EXPECT_TRUE(holds_content(bytes_of(memory->region()), 1, 0));
    }
    return report;
  }

  // With an error that nothing but a new process gets rid of.
  void break_gpu() {
    if (fake_) {
      fake_->fail_copy(0, 1, cuda::cu_illegal_address);
      return;
    }
    const cuda::Current current(gpu());
    const cuda::RelaxedApi& api = gpu().api();
    cuda::CuModule module = nullptr;
    cuda::CuFunction kernel = nullptr;
    ASSERT_EQ(api.module_load_data(&module, kernel_that_writes_nowhere), cuda::cu_success);
    ASSERT_EQ(api.module_get_function(&kernel, module, "write_nowhere"), cuda::cu_success);
    ASSERT_EQ(api.launch_kernel(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), cuda::cu_success);
    ASSERT_EQ(api.stream_synchronize(nullptr), cuda::cu_illegal_address);
  }

  // In a process of its own, which doesn't look for leaks: the tests in this one do, and that takes seconds.
  static int exit_status_of_test(const std::string& test) {
    std::string arguments[] = {"/proc/self/exe", "--gtest_filter=" + test, "--gtest_also_run_disabled_tests",
                               "--gtest_brief=1"};
    char* pointers[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), arguments[3].data(), nullptr};
    const char* const sanitizer = std::getenv("ASAN_OPTIONS");
    std::string without_leaks =
        "ASAN_OPTIONS=" + std::string(sanitizer != nullptr ? sanitizer : "") + ":detect_leaks=0";
    std::vector<char*> variables{without_leaks.data()};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      if (!std::string_view(*variable).starts_with("ASAN_OPTIONS=")) variables.push_back(*variable);
    }
    variables.push_back(nullptr);
    pid_t child = 0;
    EXPECT_EQ(::posix_spawn(&child, pointers[0], nullptr, nullptr, pointers, variables.data()), 0);
    return exit_status_of(child);
  }

  static int exit_status_of(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

TEST_F(GpuProcess, loads) {
  Context context = make_context();
  const Report report = load(context);
  EXPECT_TRUE(report.ok()) << report.error->message;
}

TEST_F(GpuProcess, that_was_forked_is_told_so_and_its_parent_goes_on) {
  Context context = make_context();
  ASSERT_TRUE(load(context).ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto gpus = list_gpus();
    const auto memory = context.allocate(Domain::cuda(0), written_bytes);
    if (gpus.ok() || memory.ok()) ::_exit(1);
    if (gpus.error().code != Code::no_device || memory.error().code != Code::closed) ::_exit(2);
    const bool clear = gpus.error().message.find("forked") != std::string::npos &&
                       gpus.error().hint.find("spawning") != std::string::npos;
    ::_exit(clear ? 0 : 3);
  }
  EXPECT_EQ(exit_status_of(child), 0);
  EXPECT_TRUE(load(context).ok());
}

// For a process of its own, which can't use its GPU afterwards.
TEST_F(GpuProcess, DISABLED_breaks_its_gpu) {
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), written_bytes).value();
  break_gpu();
  const Report report = context.read(store, 0, memory.region());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::device_lost);
  EXPECT_NE(report.error->message.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << report.error->message;
  EXPECT_NE(report.error->hint.find("start a new one"), std::string::npos) << report.error->hint;
  if (fake_) fake_->clear_injections();  // so that what is registered can be given back
}

TEST_F(GpuProcess, that_is_new_works_after_a_sticky_error_in_another) {
  EXPECT_EQ(exit_status_of_test("GpuProcess.DISABLED_breaks_its_gpu"), 0);
  EXPECT_EQ(exit_status_of_test("GpuProcess.loads"), 0);
}

// For a process of its own, in which nothing of ours has used the GPU yet: kernels are loaded with the first use.
TEST_F(GpuProcess, DISABLED_begins_while_a_graph_is_captured) {
  GraphCapture capture;
  std::thread([this] {
    Context context = make_context();
    EXPECT_TRUE(load(context).ok());
  }).join();
  EXPECT_TRUE(capture.works());
}

TEST_F(GpuProcess, may_begin_while_a_graph_is_captured) {
  EXPECT_EQ(exit_status_of_test("GpuProcess.DISABLED_begins_while_a_graph_is_captured"), 0);
}

// For a process of its own, likewise: kernels can't be loaded while the program keeps the GPU busy.
TEST_F(GpuProcess, DISABLED_begins_while_its_gpu_is_busy) {
  const PlainCuda plain;
  cuda::CuContext context = nullptr;
  cuda::CuStream stream = nullptr;
  cuda::CuDevicePtr place = 0;
  alignas(4096) static std::atomic<std::uint32_t> word[1024] = {};
  ASSERT_EQ(plain.api.primary_context_retain(&context, 0), cuda::cu_success);
  ASSERT_EQ(plain.api.context_push(context), cuda::cu_success);
  ASSERT_EQ(plain.api.stream_create(&stream, cuda::cu_stream_non_blocking, 0), cuda::cu_success);
  ASSERT_EQ(plain.api.host_register(word, sizeof word, cuda::cu_host_register_device_map), cuda::cu_success);
  ASSERT_EQ(plain.api.host_get_device_pointer(&place, word, 0), cuda::cu_success);
  std::optional<HeldFrees> held = HeldFrees::begin().value();
  ASSERT_EQ(plain.api.stream_wait_value(stream, place, 1, cuda::cu_wait_value_geq), cuda::cu_success);
  {
    Context ours = make_context();
    EXPECT_TRUE(load(ours).ok());
    EXPECT_EQ(gpu().kernels()[cuda::Kernel::scatter], nullptr);
  }
  word[0] = 1;
  held.reset();
  EXPECT_TRUE(eventually([&] { return gpu().kernels().is_settled(); }));
  Context after = make_context();
  EXPECT_TRUE(load(after).ok());
}

TEST_F(GpuProcess, may_begin_while_its_gpu_is_busy) {
  EXPECT_EQ(exit_status_of_test("GpuProcess.DISABLED_begins_while_its_gpu_is_busy"), 0);
}

// For a process of its own, likewise: our streams are made with the first use.
TEST_F(GpuProcess, DISABLED_begins_where_no_stream_can_be_made) {
  PENSTOCK_NEEDS_FAKE();
  fake_->fail_call("cuStreamCreateWithPriority", 1, cuda::cu_out_of_memory, 1);
  Context context = make_context();
  const auto refused = context.allocate(Domain::cuda(0), written_bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::out_of_memory);
  EXPECT_NE(refused.error().message.find("make streams on cuda:0"), std::string::npos) << refused.error().message;
  fake_->clear_injections();
  EXPECT_TRUE(load(context).ok());
}

TEST_F(GpuProcess, tells_where_no_stream_can_be_made) {
  EXPECT_EQ(exit_status_of_test("GpuProcess.DISABLED_begins_where_no_stream_can_be_made"), 0);
}

// For a process of its own, in which only one GPU is in use.
TEST_F(GpuProcess, DISABLED_wants_another_gpu_while_a_stream_waits) {
  if (driver_->devices().size() < 2) GTEST_SKIP() << "one GPU";
  Context context = make_context();
  ASSERT_TRUE(load(context).ok());
  auto order = cuda::StreamOrder::begin(gpu(), make_stream()).value();
  const auto refused = context.allocate(Domain::cuda(1), written_bytes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::would_deadlock);
  EXPECT_NE(refused.error().message.find("make a context on cuda:1"), std::string::npos) << refused.error().message;
  order->release();
  EXPECT_TRUE(context.allocate(Domain::cuda(1), written_bytes).ok());
}

TEST_F(GpuProcess, gets_no_new_context_while_a_stream_waits) {
  EXPECT_EQ(exit_status_of_test("GpuProcess.DISABLED_wants_another_gpu_while_a_stream_waits"), 0);
}

}  // namespace
}  // namespace penstock::test
