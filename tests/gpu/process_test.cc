// What processes have to do with a GPU: forked children get errors, new processes begin anew.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/gpu_test.h"

namespace penstock::test {
namespace {

constexpr std::size_t size_bytes = 1 << 20;

class GpuProcess : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) write_file(folder_.path("file"), content(1, 0, size_bytes));
  }

  Report load(Context& context) {
    const Store store = context.open(folder_.path("file")).value();
    const auto memory = context.allocate(Domain::cuda(0), size_bytes);
    EXPECT_TRUE(memory.ok()) << memory.error().message;
    const Report report = context.read(store, 0, memory->region());
    if (report.ok()) {
      EXPECT_TRUE(holds_content(bytes_of(memory->region()), 1, 0));
    }
    return report;
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
    const auto memory = context.allocate(Domain::cuda(0), size_bytes);
    if (gpus.ok() || memory.ok()) ::_exit(1);
    if (gpus.error().code != Code::no_device || memory.error().code != Code::closed) ::_exit(2);
    const bool clear = gpus.error().message.find("forked") != std::string::npos &&
                       gpus.error().hint.find("spawning") != std::string::npos;
    ::_exit(clear ? 0 : 3);
  }
  EXPECT_EQ(exit_status_of(child), 0);
  EXPECT_TRUE(load(context).ok());
}

TEST_F(GpuProcess, that_is_new_works_after_a_sticky_error_in_another) {
  PENSTOCK_NEEDS_FAKE();
  Context context = make_context();
  const Store store = context.open(folder_.path("file")).value();
  const Buffer memory = context.allocate(Domain::cuda(0), size_bytes).value();
  fake_->fail_copy(0, 1, cuda::cu_illegal_address);
  const Report report = context.read(store, 0, memory.region());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error->code, Code::device_lost);
  EXPECT_NE(report.error->message.find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos) << report.error->message;
  EXPECT_NE(report.error->hint.find("start a new one"), std::string::npos) << report.error->hint;

  char name[] = "/proc/self/exe";
  char only[] = "--gtest_filter=GpuProcess.loads";
  char brief[] = "--gtest_brief=1";
  char* arguments[] = {name, only, brief, nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, name, nullptr, nullptr, arguments, environ), 0);
  EXPECT_EQ(exit_status_of(child), 0);
  fake_->clear_injections();  // so that what is registered can be given back
}

}  // namespace
}  // namespace penstock::test
