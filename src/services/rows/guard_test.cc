#include "services/rows/guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

namespace penstock::rows {
namespace {

constexpr std::size_t guarded_bytes = 64 << 10;

// A mapped file without a name.
class MappedScratch {
 public:
  MappedScratch() {
    char name[] = "/tmp/penstock-guard-XXXXXX";
    fd_ = ::mkstemp(name);
    ::unlink(name);
    truncate(guarded_bytes);
    data_ = static_cast<std::byte*>(::mmap(nullptr, guarded_bytes, PROT_READ, MAP_SHARED, fd_, 0));
  }
  ~MappedScratch() {
    ::munmap(data_, guarded_bytes);
    ::close(fd_);
  }
  MappedScratch(const MappedScratch&) = delete;
  MappedScratch& operator=(const MappedScratch&) = delete;

  void truncate(off_t size) const { EXPECT_EQ(::ftruncate(fd_, size), 0); }
  int fd() const { return fd_; }
  Mapped bytes() const { return {data_, guarded_bytes}; }

 private:
  int fd_ = -1;
  std::byte* data_ = nullptr;
};

void touch_last(void* argument) {
  const Mapped mapping = *static_cast<const Mapped*>(argument);
  static_cast<void>(*static_cast<const volatile std::byte*>(&mapping.back()));
}

TEST(Guard, a_page_that_is_gone_ends_the_work_and_not_the_process) {
  ASSERT_TRUE(install_guard());
  const MappedScratch file;
  Mapped mapping = file.bytes();
  EXPECT_TRUE(run_guarded({&mapping, 1}, touch_last, &mapping));
  file.truncate(4096);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(run_guarded({&mapping, 1}, touch_last, &mapping));
  file.truncate(guarded_bytes);
  EXPECT_TRUE(run_guarded({&mapping, 1}, touch_last, &mapping));
}

TEST(Guard, works_where_the_thread_has_the_signal_blocked_and_leaves_it_so) {
  ASSERT_TRUE(install_guard());
  const MappedScratch file;
  Mapped mapping = file.bytes();
  file.truncate(0);
  sigset_t bus;
  sigset_t before;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &bus, &before), 0);
  EXPECT_FALSE(run_guarded({&mapping, 1}, touch_last, &mapping));
  sigset_t now;
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, &now), 0);
  EXPECT_EQ(sigismember(&now, SIGBUS), 1);
}

// The thread sanitizer takes a handler that was jumped out of for one that still runs, and holds the next signal back.
constexpr bool can_catch_two =
#if defined(__SANITIZE_THREAD__)
    false;
#else
    true;
#endif

TEST(Guard, a_guard_within_another_gives_the_outer_one_back) {
  if (!can_catch_two) GTEST_SKIP() << "the thread sanitizer holds the second signal back";
  ASSERT_TRUE(install_guard());
  const MappedScratch file;
  Mapped mapping = file.bytes();
  file.truncate(0);
  const auto twice = [](void* argument) {
    const Mapped& mapped = *static_cast<const Mapped*>(argument);
    static_cast<void>(run_guarded({&mapped, 1}, touch_last, argument));
    touch_last(argument);
  };
  EXPECT_FALSE(run_guarded({&mapping, 1}, twice, &mapping));
}

// The handler of the test, and what was there before; puts it back.
class OtherHandler {
 public:
  explicit OtherHandler(void (*handle)(int, siginfo_t*, void*)) {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(::sigaction(SIGBUS, &action, &before_), 0);
  }
  ~OtherHandler() { ::sigaction(SIGBUS, &before_, nullptr); }
  OtherHandler(const OtherHandler&) = delete;
  OtherHandler& operator=(const OtherHandler&) = delete;

  const struct sigaction& before() const { return before_; }

 private:
  struct sigaction before_ = {};
};

int fd_to_mend = -1;
int first_calls = 0;
int second_calls = 0;
const OtherHandler* second_handler = nullptr;

TEST(Guard, comes_before_a_handler_that_was_installed_later) {
  if (!can_catch_two) GTEST_SKIP() << "the thread sanitizer holds the second signal back";
  ASSERT_TRUE(install_guard());
  const MappedScratch file;
  Mapped mapping = file.bytes();
  file.truncate(0);
  fd_to_mend = file.fd();
  first_calls = 0;
  // Brings the page back, as else the load would fault for ever.
  const OtherHandler other([](int, siginfo_t*, void*) {
    ++first_calls;
    if (::ftruncate(fd_to_mend, guarded_bytes) != 0) ::abort();
  });
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(run_guarded({&mapping, 1}, touch_last, &mapping));
  EXPECT_EQ(first_calls, 0);
  touch_last(&mapping);
  EXPECT_EQ(first_calls, 1) << "what is not ours goes to it";
}

TEST(Guard, handlers_that_pass_on_to_ours_get_each_signal_once) {
  if (!can_catch_two) GTEST_SKIP() << "the thread sanitizer holds the second signal back";
  ASSERT_TRUE(install_guard());
  const auto nothing = [](void*) {};
  first_calls = 0;
  second_calls = 0;
  const OtherHandler first([](int, siginfo_t*, void*) { ++first_calls; });
  EXPECT_TRUE(run_guarded({}, nothing, nullptr));
  const OtherHandler second([](int signal, siginfo_t* info, void* context) {
    ++second_calls;
    second_handler->before().sa_sigaction(signal, info, context);
  });
  second_handler = &second;
  for (int i = 1; i <= 3; ++i) {
    EXPECT_TRUE(run_guarded({}, nothing, nullptr));
    ::raise(SIGBUS);
    EXPECT_EQ(first_calls, i);
    EXPECT_EQ(second_calls, i);
  }
}

// Not under sanitizers, which have handlers of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(GuardDeathTest, what_is_not_ours_ends_the_process_as_ever) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const MappedScratch file;
  Mapped mapping = file.bytes();
  EXPECT_EXIT(
      {
        install_guard();
        file.truncate(0);
        touch_last(&mapping);
      },
      testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        install_guard();
        file.truncate(0);
        run_guarded({}, touch_last, &mapping);  // another's mapping
      },
      testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(
      {
        install_guard();
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(GuardDeathTest, the_handler_before_ours_gets_what_is_not_ours) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const MappedScratch file;
  Mapped mapping = file.bytes();
  EXPECT_EXIT(
      {
        struct sigaction action = {};
        action.sa_sigaction = [](int, siginfo_t* info, void*) { ::_exit(info->si_addr != nullptr ? 42 : 43); };
        action.sa_flags = SA_SIGINFO;
        ::sigaction(SIGBUS, &action, nullptr);
        install_guard();
        file.truncate(0);
        touch_last(&mapping);
      },
      testing::ExitedWithCode(42), "");
}
#endif

}  // namespace
}  // namespace penstock::rows
