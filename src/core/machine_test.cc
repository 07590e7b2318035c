#include "penstock/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace penstock {
namespace {

TEST(Machine, is_described_within_what_the_system_says) {
  const Machine machine = Machine::detect();
  EXPECT_GE(machine.usable_cpus, 1u);
  EXPECT_LE(machine.usable_cpus, static_cast<std::uint32_t>(::sysconf(_SC_NPROCESSORS_CONF)));
  EXPECT_EQ(machine.page_bytes, static_cast<std::uint32_t>(::sysconf(_SC_PAGESIZE)));
  EXPECT_GT(machine.memory_bytes, 1u << 20);
  EXPECT_FALSE(machine.kernel.empty());
  EXPECT_FALSE(machine.architecture.empty());
}

// Runs `check` in a child, whose affinity and limits may be spoiled.
void expect_in_child(bool (*check)()) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Machine, follows_the_affinity_mask) {
  expect_in_child([] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(static_cast<unsigned>(::sched_getcpu()), &mask);
    return ::sched_setaffinity(0, sizeof mask, &mask) == 0 && Machine::detect().usable_cpus == 1;
  });
}

TEST(Machine, follows_the_memlock_limit_of_the_unprivileged) {
  expect_in_child([] {
    const rlimit limit{65536, 65536};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
    if (::getuid() == 0 && ::setuid(65534) != 0) return false;
    return Machine::detect().lockable_bytes == 65536;
  });
}

}  // namespace
}  // namespace penstock
