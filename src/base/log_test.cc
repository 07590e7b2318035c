#include "base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace penstock {
namespace {

// The level is read once a process, so each level is tried in a process of its own.
[[noreturn]] void log_all_and_exit(const char* level) {
  if (level == nullptr) {
    ::unsetenv("PENSTOCK_LOG");
  } else {
    ::setenv("PENSTOCK_LOG", level, 1);
  }
  log(LogLevel::error, "one");
  log(LogLevel::warning, "two");
  log(LogLevel::info, "three");
  std::_Exit(0);
}

class LogDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(LogDeathTest, warnings_and_errors_are_written_by_default) {
  EXPECT_EXIT(log_all_and_exit(nullptr), testing::ExitedWithCode(0),
              "^penstock: error: one\npenstock: warning: two\n$");
}

TEST_F(LogDeathTest, a_level_drops_what_is_above_it) {
  EXPECT_EXIT(log_all_and_exit("error"), testing::ExitedWithCode(0), "^penstock: error: one\n$");
}

TEST_F(LogDeathTest, info_writes_everything) {
  EXPECT_EXIT(log_all_and_exit("info"), testing::ExitedWithCode(0),
              "^penstock: error: one\npenstock: warning: two\npenstock: info: three\n$");
}

TEST_F(LogDeathTest, an_unknown_level_means_the_default) {
  EXPECT_EXIT(log_all_and_exit("loud"), testing::ExitedWithCode(0), "^penstock: error: one\npenstock: warning: two\n$");
}

}  // namespace
}  // namespace penstock
