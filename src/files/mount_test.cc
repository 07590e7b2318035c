#include "files/mount.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include "base/unique_fd.h"

namespace penstock::files {
namespace {

TEST(Mountinfo, gives_device_point_and_source_of_each_line) {
  const auto mounts = parse_mountinfo(
      "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
      "36 22 98:3 /sub /mnt/a rw,noatime master:1 shared:7 - btrfs /dev/sdb1 rw,subvolid=5\n");
  ASSERT_EQ(mounts.size(), 2U);
  EXPECT_EQ(mounts[0].device, (DeviceNumber{254, 0}));
  EXPECT_EQ(mounts[0].point, "/");
  EXPECT_EQ(mounts[0].source, "/dev/vda");
  EXPECT_EQ(mounts[0].type, "ext4");
  EXPECT_EQ(mounts[1].device, (DeviceNumber{98, 3}));
  EXPECT_EQ(mounts[1].point, "/mnt/a");
  EXPECT_EQ(mounts[1].source, "/dev/sdb1");
}

TEST(Mountinfo, undoes_the_escapes_of_the_kernel) {
  const auto mounts = parse_mountinfo("1 2 8:1 / /a\\040b\\134c - ext4 /dev/x\\011y rw");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].point, "/a b\\c");
  EXPECT_EQ(mounts[0].source, "/dev/x\ty");
}

TEST(Mountinfo, skips_lines_that_make_no_sense) {
  EXPECT_TRUE(parse_mountinfo("").empty());
  EXPECT_TRUE(parse_mountinfo("\n\n").empty());
  EXPECT_TRUE(parse_mountinfo("1 2 x:y / /a - ext4 /dev/x rw\n1 2 8 / /a\n1 2 8:99999999999 / /a").empty());
  EXPECT_TRUE(parse_mountinfo("1 2 8:1 /").empty());
}

TEST(Mountinfo, keeps_a_line_without_a_source) {
  const auto mounts = parse_mountinfo("1 2 8:1 / /a rw");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].source, "");
}

TEST(Mountinfo, tells_file_systems_that_a_server_answers_for) {
  for (const char* type : {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse", "9p", "ceph"}) {
    EXPECT_TRUE(is_served(type)) << type;
  }
  for (const char* type : {"ext4", "xfs", "btrfs", "tmpfs", "proc", "overlay", ""})
    EXPECT_FALSE(is_served(type)) << type;
}

TEST(Mountinfo, gives_the_options_of_the_file_system) {
  const auto mounts = parse_mountinfo(
      "36 22 0:40 / /mnt rw,noatime shared:7 - overlay overlay rw,lowerdir=/a,upperdir=/b\\040c,volatile\n");
  ASSERT_EQ(mounts.size(), 1U);
  EXPECT_EQ(mounts[0].id, 36U);
  EXPECT_EQ(mount_option(mounts[0], "upperdir"), "/b c");
  EXPECT_EQ(mount_option(mounts[0], "volatile"), "");
  EXPECT_FALSE(mount_option(mounts[0], "noatime"));
  EXPECT_FALSE(mount_option(mounts[0], "lower"));
}

TEST(Mountinfo, has_the_mount_of_an_open_file) {
  const UniqueFd proc(::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC));
  const auto mount = mount_of(proc.get());
  if (!mount) GTEST_SKIP() << "the kernel does not tell the mount of a file";
  EXPECT_EQ(mount->point, "/proc");
}

TEST(Swaps, gives_the_names_after_the_heading) {
  const std::vector<SwapArea> swaps = parse_swaps(
      "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
      "/dev/sda2                               partition\t1048572\t\t0\t\t-2\n"
      "/swap\\040file file 1 0 -3\n");
  ASSERT_EQ(swaps.size(), 2U);
  EXPECT_EQ(swaps[0].name, "/dev/sda2");
  EXPECT_FALSE(swaps[0].is_file);
  EXPECT_EQ(swaps[1].name, "/swap file");
  EXPECT_TRUE(swaps[1].is_file);
  EXPECT_TRUE(parse_swaps("").empty());
  EXPECT_TRUE(parse_swaps("Filename Type").empty());
}

TEST(FileSystem, is_known_by_its_number) {
  EXPECT_EQ(file_system_from_magic(0xEF53).name, "ext4");
  EXPECT_EQ(file_system_from_magic(0xEF53).locality, Locality::local);
  EXPECT_EQ(file_system_from_magic(0x01021994).locality, Locality::memory);
  EXPECT_EQ(file_system_from_magic(0x6969).locality, Locality::network);
  EXPECT_EQ(file_system_from_magic(0xFF534D42).name, "cifs");
  EXPECT_EQ(file_system_from_magic(0x65735546).locality, Locality::fuse);
}

TEST(FileSystem, whose_files_are_made_as_they_are_read_is_known_as_such) {
  for (const std::uint32_t magic : {0x9FA0U, 0x62656572U, 0x63677270U, 0x64626720U, 0x74726163U, 0x73636673U}) {
    EXPECT_TRUE(file_system_from_magic(magic).generated) << magic;
  }
  for (const std::uint32_t magic : {0xEF53U, 0x01021994U, 0x65735546U, 1U}) {
    EXPECT_FALSE(file_system_from_magic(magic).generated) << magic;
  }
}

TEST(FileSystem, of_a_network_is_known_as_such) {
  // statfs(2), and the sources of those that it does not list.
  const std::pair<std::uint32_t, const char*> numbers[] = {
      {0x6969, "nfs"},      {0xFF534D42, "cifs"},   {0xFE534D42, "smb2"}, {0x517B, "smb"},
      {0x00C36400, "ceph"}, {0x0BD00BD0, "lustre"}, {0x01021997, "9p"},   {0x19830326, "beegfs"},
      {0x47504653, "gpfs"}, {0x5346414F, "afs"},    {0x73757245, "coda"},
  };
  for (const auto& [number, name] : numbers) {
    const FileSystem file_system = file_system_from_magic(number);
    EXPECT_EQ(file_system.name, name);
    EXPECT_EQ(file_system.locality, Locality::network) << name;
  }
}

TEST(FileSystem, that_is_unknown_is_named_by_its_number) {
  EXPECT_EQ(file_system_from_magic(0x1234).name, "0x1234");
  EXPECT_EQ(file_system_from_magic(0x1234).locality, Locality::local);
}

}  // namespace
}  // namespace penstock::files
