#include "engines/cufile/library.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace penstock::cufile {
namespace {

DriverState state(bool nvidia_fs, bool p2pdma, bool compat) {
  DriverState made;
  if (nvidia_fs) {
    made.properties.kernel_module.major = 2;
    made.properties.kernel_module.status_flags = 1U << cf_status_nvme;
  }
  made.properties.feature_flags = p2pdma ? 1U << cf_feature_p2p : 0;
  made.compat_allowed = compat;
  return made;
}

TEST(CuFileRoute, is_what_is_left_when_the_fallback_is_forbidden) {
  EXPECT_EQ(route_from_state(state(true, false, false)), Route::gds);
  EXPECT_EQ(route_from_state(state(false, true, false)), Route::p2pdma);
  EXPECT_EQ(route_from_state(state(true, true, false)), Route::gds);
  DriverState prefers = state(true, true, false);
  prefers.prefers_p2pdma = true;
  EXPECT_EQ(route_from_state(prefers), Route::p2pdma);
  EXPECT_EQ(route_from_state(state(false, false, false)), std::nullopt);
}

TEST(CuFileRoute, is_p2pdma_where_an_older_library_says_so_among_the_kinds_of_storage) {
  DriverState older = state(false, false, false);
  older.properties.kernel_module.status_flags = 1U << cf_status_p2p;
  EXPECT_EQ(route_from_state(older), Route::p2pdma);
  older.properties.kernel_module.major = 2;  // nvidia-fs is loaded and serves nothing itself
  EXPECT_EQ(route_from_state(older), Route::p2pdma);
  older.properties.kernel_module.status_flags |= 1U << cf_status_nvme;
  EXPECT_EQ(route_from_state(older), Route::gds);
}

TEST(CuFileRoute, is_not_known_where_cufile_may_choose) {
  EXPECT_EQ(route_from_state(state(true, false, true)), Route::cufile_unknown);
  EXPECT_EQ(route_from_state(state(false, true, true)), Route::cufile_unknown);
  EXPECT_EQ(route_from_state(state(false, false, true)), Route::cufile_compat);
}

TEST(CuFileRoute, is_compatibility_mode_where_that_is_forced) {
  DriverState forced = state(true, true, true);
  forced.compat_forced = true;
  EXPECT_EQ(route_from_state(forced), Route::cufile_compat);
}

TEST(CuFileRoute, needs_storage_that_the_kernel_module_serves) {
  DriverState serves_nothing = state(true, false, true);
  serves_nothing.properties.kernel_module.status_flags = 0;
  EXPECT_EQ(route_from_state(serves_nothing), Route::cufile_compat);
}

TEST(CuFileLibrary, is_found_by_a_child_that_was_forked_while_another_thread_looked_for_it) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer does not bear children of several threads";
#endif
  std::atomic<bool> done = false;
  std::thread other([&done] {
    while (!done) static_cast<void>(Library::acquire());
  });
  for (int i = 0; i < 10; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      static_cast<void>(Library::acquire());
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  done = true;
  other.join();
}

TEST(CuFileRoute, is_proven_by_counts_of_one_kind) {
  for (const Route expected : {Route::gds, Route::p2pdma, Route::cufile_unknown}) {
    EXPECT_EQ(route_from_counts(expected, {}), expected);
    EXPECT_EQ(route_from_counts(expected, {.p2pdma = 1}), Route::p2pdma);
    EXPECT_EQ(route_from_counts(expected, {.nvidia_fs = 1}), Route::gds);
    EXPECT_EQ(route_from_counts(expected, {.posix = 1}), Route::cufile_compat);
    EXPECT_EQ(route_from_counts(expected, {.p2pdma = 1, .nvidia_fs = 1}), expected);
    EXPECT_EQ(route_from_counts(expected, {.p2pdma = 9, .posix = 1}), Route::cufile_unknown);
    EXPECT_EQ(route_from_counts(expected, {.nvidia_fs = 9, .posix = 1}), Route::cufile_unknown);
  }
}

}  // namespace
}  // namespace penstock::cufile
