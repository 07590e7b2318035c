#include "core/cgroup.h"

#include <gtest/gtest.h>

namespace penstock::core {
namespace {

using Folders = std::vector<std::string>;

TEST(Cgroup, version_2_limits_bind_from_the_process_up_to_the_mount) {
  const char* mountinfo =
      "23 29 0:21 / /proc rw - proc proc rw\n"
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
  EXPECT_EQ(cgroup_folders("0::/user.slice/a.scope\n", mountinfo, "cpu"),
            (Folders{"/sys/fs/cgroup/user.slice/a.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"}));
  EXPECT_EQ(cgroup_folders("0::/\n", mountinfo, "memory"), Folders{"/sys/fs/cgroup"});
}

TEST(Cgroup, version_1_controllers_have_their_own_places) {
  const char* mountinfo =
      "34 33 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"
      "37 33 0:34 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
  const char* cgroup = "4:memory:/job/7\n2:cpu,cpuacct:/\n1:name=systemd:/x\n";
  EXPECT_EQ(cgroup_folders(cgroup, mountinfo, "memory"),
            (Folders{"/sys/fs/cgroup/memory/job/7", "/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/memory"}));
  EXPECT_EQ(cgroup_folders(cgroup, mountinfo, "cpu"), Folders{"/sys/fs/cgroup/cpu,cpuacct"});
  EXPECT_EQ(cgroup_folders(cgroup, mountinfo, "pids"), Folders{});
}

TEST(Cgroup, a_container_that_sees_only_its_own_part_finds_it_at_the_mount) {
  const char* mountinfo = "37 33 0:34 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
  EXPECT_EQ(cgroup_folders("4:memory:/docker/abc\n", mountinfo, "memory"), Folders{"/sys/fs/cgroup/memory"});
  EXPECT_EQ(cgroup_folders("4:memory:/docker/abc/sub\n", mountinfo, "memory"),
            (Folders{"/sys/fs/cgroup/memory/sub", "/sys/fs/cgroup/memory"}));
}

TEST(Cgroup, a_place_that_only_begins_like_the_mounted_part_is_not_below_it) {
  const char* mountinfo = "37 33 0:34 /jo /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
  EXPECT_EQ(cgroup_folders("4:memory:/job/7\n", mountinfo, "memory"), Folders{"/sys/fs/cgroup/memory"});
}

TEST(Cgroup, a_process_outside_its_namespace_uses_the_mount) {
  const char* mountinfo = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(cgroup_folders("0::/../other\n", mountinfo, "cpu"), Folders{"/sys/fs/cgroup"});
}

TEST(Cgroup, mount_points_with_blanks_are_unescaped) {
  const char* mountinfo = "30 23 0:26 / /my\\040cgroup rw - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(cgroup_folders("0::/\n", mountinfo, "cpu"), Folders{"/my cgroup"});
}

TEST(Cgroup, nonsense_gives_no_folders) {
  for (const char* text : {"", "\n", "x", "0::", " - cgroup2", "1 2 3 4 5 - cgroup2", "0::relative"}) {
    EXPECT_EQ(cgroup_folders(text, text, "cpu"), Folders{}) << text;
  }
}

TEST(Cgroup, cpu_limits_are_quota_by_period) {
  EXPECT_DOUBLE_EQ(parse_cpu_max("150000 100000\n").value(), 1.5);
  EXPECT_EQ(parse_cpu_max("max 100000\n"), std::nullopt);
  EXPECT_DOUBLE_EQ(parse_cpu_quota("400000\n", "100000\n").value(), 4);
  EXPECT_EQ(parse_cpu_quota("-1\n", "100000\n"), std::nullopt);
  for (const char* text : {"", "0 0", "0 100000", "100000 0", "100000", "a b", "99999999999999999999 1"}) {
    EXPECT_EQ(parse_cpu_max(text), std::nullopt) << text;
  }
}

TEST(Cgroup, memory_limits_are_bytes) {
  EXPECT_EQ(parse_memory_limit("1073741824\n"), 1073741824u);
  EXPECT_EQ(parse_memory_limit("9223372036854771712\n"), 9223372036854771712u);
  for (const char* text : {"max\n", "", "0", "-1", "1 2", "18446744073709551616"}) {
    EXPECT_EQ(parse_memory_limit(text), std::nullopt) << text;
  }
}

TEST(Cgroup, memory_is_left_up_to_the_limit_but_for_what_is_taken_and_what_the_process_needs_beside) {
  constexpr std::uint64_t mib = 1 << 20;
  const std::string limit = std::to_string(64 * mib) + "\n", usage = std::to_string(10 * mib) + "\n";
  EXPECT_EQ(memory_left({limit, "0\n", ""}), 48 * mib);
  EXPECT_EQ(memory_left({limit, usage, ""}), 38 * mib);
  EXPECT_EQ(memory_left({limit, usage, "anon 5\nactive_file 1048576\ninactive_file 2097152\n"}), 41 * mib);
  EXPECT_EQ(memory_left({limit, usage, "active_file 0\ntotal_active_file 1048576\ntotal_inactive_file 1048576\n"}),
            40 * mib);
  EXPECT_EQ(memory_left({limit, usage, "inactive_file 99999999999\n"}), 48 * mib);
  EXPECT_EQ(memory_left({"8388608\n", "0\n", ""}), 4 * mib);
  EXPECT_EQ(memory_left({"8388608\n", "8388608\n", ""}), 0U);
  EXPECT_EQ(memory_left({limit, "", ""}), 48 * mib);
  EXPECT_EQ(memory_left({"max\n", usage, ""}), std::nullopt);
}

}  // namespace
}  // namespace penstock::core
