#include "engines/uring/refusal.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "engines/uring/engine.h"

namespace penstock::uring {
namespace {

bool mentions(const std::string& text, const std::string& what) {
  return text.find(what) != std::string::npos;
}

TEST(Refusal, by_the_sysctl_names_it_and_its_value) {
  const engine::Probe off = explain_refusal(EPERM, 2);
  EXPECT_FALSE(off.available);
  EXPECT_TRUE(mentions(off.reason, "io_uring_disabled is 2"));
  EXPECT_TRUE(mentions(off.remedy, "io_uring_disabled=0"));
  EXPECT_TRUE(mentions(explain_refusal(EPERM, 1).remedy, "io_uring_group"));
}

TEST(Refusal, by_a_container_names_seccomp) {
  EXPECT_TRUE(mentions(explain_refusal(EPERM, 0).remedy, "seccomp"));
  EXPECT_TRUE(mentions(explain_refusal(EPERM, std::nullopt).remedy, "seccomp"));
}

TEST(Refusal, by_an_old_kernel_says_which_to_use) {
  EXPECT_TRUE(mentions(explain_refusal(ENOSYS, std::nullopt).remedy, "5.11"));
}

TEST(Refusal, for_want_of_memory_names_the_limit) {
  EXPECT_TRUE(mentions(explain_refusal(ENOMEM, 0).remedy, "ulimit -l"));
}

TEST(Refusal, that_is_unknown_still_has_a_reason) {
  EXPECT_TRUE(mentions(explain_refusal(EIO, 0).reason, "Input/output error"));
}

TEST(Refusal, of_rings_that_can_be_made_names_the_call) {
  const engine::Probe probe = explain_refused_use(EPERM);
  EXPECT_FALSE(probe.available);
  EXPECT_TRUE(mentions(probe.reason, "io_uring_enter was refused"));
  EXPECT_TRUE(mentions(probe.remedy, "seccomp"));
}

TEST(Refusal, that_is_simulated_is_seen_by_probe_and_make_queue) {
  const auto engine = make_engine({.simulated_refusal = ENOSYS});
  EXPECT_FALSE(engine->probe().available);
  const auto queue = engine->make_queue({});
  ASSERT_FALSE(queue.ok());
  EXPECT_EQ(queue.error().code, Code::engine_unavailable);
  EXPECT_EQ(queue.error().system_error, ENOSYS);
  EXPECT_FALSE(queue.error().hint.empty());
  EXPECT_TRUE(engine->make_queue({.run_inline = true}).ok());
}

}  // namespace
}  // namespace penstock::uring
