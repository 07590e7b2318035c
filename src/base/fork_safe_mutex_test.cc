#include "base/fork_safe_mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace penstock {
namespace {

TEST(ForkSafeMutex, IsFreeInAChildForkedWhileAThreadLocksIt) {
  static ForkSafeMutex mutex;
  const ForkSafeMutex another;
  std::atomic<bool> stop = false;
  std::thread thread([&] {
    while (!stop) {
      const std::scoped_lock lock(mutex);
      ::usleep(100);
    }
  });
  int failed = 0;
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // ends a child that waits for a thread that is not there
      { const std::scoped_lock lock(mutex); }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    failed += status != 0;
    if (failed != 0) break;
  }
  stop = true;
  thread.join();
  EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace penstock
