#include "files/device_use.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>

#include "files/open.h"
#include "files/test_machine.h"
#include "files/test_scratch.h"

namespace penstock::files {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct stat status_of(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status;
}

// Of its file, that a loop device shows.
struct Part {
  std::string offset = "0";
  std::string size = "0";  // 0: up to the end
};

// Devices in a tree of our own: the disk sda, 8:0, with partitions 8:1 and 8:2, and what a test adds.
class FakeDisk : public testing::Test {
 protected:
  FakeDisk() {
    std::filesystem::create_directories(tree_.path("sys/block"));
    add("sda", "8:0");
    add("sda/sda1", "8:1");
    add("sda/sda2", "8:2");
    set_mounts("");
  }
  static std::string folder_of(const std::string& device) { return "sys/devices/" + device; }
  void add(const std::string& device, const std::string& number) {
    const std::string folder = folder_of(device);
    tree_.write(folder + "/dev", number + "\n");
    if (contains(device, "/")) {
      tree_.write(folder + "/partition", "1\n");
    } else {
      std::filesystem::create_directory_symlink(tree_.path(folder), tree_.path("sys/block/" + device));
    }
    for (const char* links : {"/holders", "/slaves"}) std::filesystem::create_directories(tree_.path(folder + links));
    std::filesystem::create_directories(tree_.path("sys/dev/block"));
    std::filesystem::create_directory_symlink(tree_.path(folder), tree_.path("sys/dev/block/" + number));
  }
  void add_loop(const std::string& name, const std::string& number, const std::string& backing, const Part& part = {}) {
    add(name, number);
    tree_.write(folder_of(name) + "/loop/backing_file", backing + "\n");
    tree_.write(folder_of(name) + "/loop/offset", part.offset + "\n");
    tree_.write(folder_of(name) + "/loop/sizelimit", part.size + "\n");
    tree_.write(folder_of(name) + "/loop/autoclear", "0\n");
    tree_.write(folder_of(name) + "/ro", "0\n");
  }
  struct Stack {
    std::string above;
    std::string below;
  };
  void build(const Stack& stack) {
    const auto name = [](const std::string& device) { return std::filesystem::path(device).filename().string(); };
    std::filesystem::create_directory_symlink(tree_.path(folder_of(stack.above)),
                                              tree_.path(folder_of(stack.below) + "/holders/" + name(stack.above)));
    std::filesystem::create_directory_symlink(tree_.path(folder_of(stack.below)),
                                              tree_.path(folder_of(stack.above) + "/slaves/" + name(stack.below)));
  }
  void set_mounts(const std::string& text) { tree_.write("proc/self/mountinfo", text); }
  void mount(const std::string& number, const std::string& point) {
    set_mounts("1 2 " + number + " / " + point + " rw - ext4 none rw\n");
  }
  SystemRoots roots() const { return {tree_.path("proc"), tree_.path("sys"), tree_.path("dev")}; }
  Status check(DeviceNumber device) const { return check_unused(device, "/dev/test", roots()); }
  Status check_file(const std::string& path, FileChange change = FileChange::in_place) const {
    return check_unused(status_of(path), path, change, roots());
  }

  ScratchFolder tree_;
};

TEST_F(FakeDisk, that_nothing_uses_is_free) {
  EXPECT_TRUE(check({8, 0}).ok());
  EXPECT_TRUE(check({8, 1}).ok());
}

TEST_F(FakeDisk, is_in_use_when_it_is_mounted) {
  mount("8:0", "/data");
  const Status status = check({8, 0});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::in_use);
  EXPECT_EQ(status.error().message, "/dev/test is in use: it is mounted on /data");
  EXPECT_TRUE(contains(status.error().hint, "umount /data")) << status.error().hint;
}

TEST_F(FakeDisk, is_in_use_when_a_partition_is_mounted) {
  mount("8:2", "/data");
  EXPECT_EQ(check({8, 0}).error().message, "/dev/test is in use: it has the partition sda2, which is mounted on /data");
}

TEST_F(FakeDisk, has_partitions_that_are_in_use_when_the_whole_is) {
  mount("8:0", "/data");
  EXPECT_EQ(check({8, 1}).error().message, "/dev/test is in use: it is on the disk sda, which is mounted on /data");
  set_mounts("");
  add("dm-0", "253:0");
  build({.above = "dm-0", .below = "sda"});
  EXPECT_EQ(check({8, 1}).error().code, Code::in_use);
}

TEST_F(FakeDisk, has_partitions_that_do_not_care_for_their_neighbours) {
  mount("8:2", "/data");
  EXPECT_TRUE(check({8, 1}).ok());
}

TEST_F(FakeDisk, is_in_use_when_it_or_a_partition_is_held) {
  tree_.write(folder_of("sda/sda1") + "/holders/dm-0", "");
  for (const DeviceNumber device : {DeviceNumber{8, 0}, DeviceNumber{8, 1}}) {
    const Status status = check(device);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::in_use);
    EXPECT_TRUE(contains(status.error().message, "dm-0")) << status.error().message;
  }
  EXPECT_TRUE(check({8, 2}).ok());
}

TEST_F(FakeDisk, is_in_use_by_a_raid_that_is_mounted) {
  add("md0", "9:0");
  build({.above = "md0", .below = "sda/sda1"});
  mount("9:0", "/data");
  const Status status = check({8, 1});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "/dev/test is in use: it is held by md0, which is mounted on /data");
  EXPECT_TRUE(contains(status.error().hint, "umount /data && mdadm --stop /dev/md0")) << status.error().hint;
}

TEST_F(FakeDisk, has_logical_volumes_that_do_not_care_for_their_neighbours) {
  add("dm-0", "253:0");
  add("dm-1", "253:1");
  build({.above = "dm-0", .below = "sda/sda1"});
  build({.above = "dm-1", .below = "sda/sda1"});
  mount("253:1", "/data");
  EXPECT_TRUE(check({253, 0}).ok());
  EXPECT_EQ(check({253, 1}).error().code, Code::in_use);
}

TEST_F(FakeDisk, is_not_written_to_when_the_system_can_not_be_asked) {
  EXPECT_EQ(check({8, 7}).error().code, Code::unsupported);
  std::filesystem::remove_all(tree_.path("proc"));
  EXPECT_EQ(check({8, 0}).error().code, Code::unsupported);
}

// A file that a loop device shows, as sysfs tells of it.
class FakeLoop : public FakeDisk {
 protected:
  FakeLoop() { add_loop("loop0", "7:0", image_); }

  const std::string image_ = tree_.write("image", "x");
};

TEST_F(FakeLoop, makes_its_file_used_though_nothing_uses_the_device) {
  const Status status = check_file(image_);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::in_use);
  EXPECT_EQ(status.error().message, image_ + " is in use: it backs /dev/loop0");
  EXPECT_EQ(status.error().hint, "end that first: losetup -d /dev/loop0");
  EXPECT_TRUE(check({7, 0}).ok()) << "who writes to the device means it";
  EXPECT_TRUE(check_file(tree_.write("other", "x")).ok());
}

TEST_F(FakeLoop, tells_what_it_is_used_for) {
  mount("7:0", "/mnt");
  EXPECT_EQ(check_file(image_).error().message, image_ + " is in use: it backs /dev/loop0, which is mounted on /mnt");
  EXPECT_EQ(check_file(image_).error().hint, "end that first: umount /mnt && losetup -d /dev/loop0");
  tree_.write(folder_of("loop0") + "/loop/autoclear", "1\n");
  EXPECT_EQ(check_file(image_).error().hint, "end that first: umount /mnt");
}

TEST_F(FakeLoop, is_seen_through_all_that_is_built_on_it) {
  add("loop0/loop0p1", "259:0");
  add("dm-0", "253:0");
  tree_.write(folder_of("dm-0") + "/dm/name", "secret\n");
  tree_.write(folder_of("dm-0") + "/dm/uuid", "CRYPT-LUKS2-0-secret\n");
  build({.above = "dm-0", .below = "loop0/loop0p1"});
  mount("253:0", "/mnt");
  EXPECT_EQ(check_file(image_).error().message,
            image_ +
                " is in use: it backs /dev/loop0, which has the partition loop0p1, which is held by dm-0, which is "
                "mounted on /mnt");
  EXPECT_EQ(check_file(image_).error().hint,
            "end that first: umount /mnt && cryptsetup close secret && losetup -d /dev/loop0");
}

TEST_F(FakeLoop, that_is_read_only_does_not_mind_that_its_file_is_replaced) {
  EXPECT_EQ(check_file(image_, FileChange::replacement).error().code, Code::in_use);
  tree_.write(folder_of("loop0") + "/ro", "1\n");
  EXPECT_TRUE(check_file(image_, FileChange::replacement).ok());
  EXPECT_EQ(check_file(image_, FileChange::in_place).error().code, Code::in_use);
}

TEST_F(FakeLoop, is_in_use_when_another_shows_the_same_bytes) {
  add_loop("loop1", "7:1", image_, {.offset = "4096", .size = "4096"});
  mount("7:1", "/mnt");
  EXPECT_EQ(check({7, 0}).error().message,
            "/dev/test is in use: it is backed by a file that also backs /dev/loop1, which is mounted on /mnt");
  tree_.write(folder_of("loop0") + "/loop/sizelimit", "4096\n");
  EXPECT_TRUE(check({7, 0}).ok()) << "other bytes of the same file";
}

TEST_F(FakeLoop, is_looked_at_beneath_what_is_built_on_it) {
  add_loop("loop1", "7:1", image_);
  add("dm-0", "253:0");
  build({.above = "dm-0", .below = "loop0"});
  mount("7:1", "/mnt");
  EXPECT_EQ(check({253, 0}).error().code, Code::in_use);
  set_mounts("");
  std::filesystem::remove_all(tree_.path(folder_of("loop1") + "/loop"));
  EXPECT_TRUE(check({253, 0}).ok());
}

TEST_F(FakeLoop, of_a_server_is_not_asked_about_for_a_file_elsewhere) {
  set_mounts("1 2 0:77 / " + tree_.path() + " rw - fuse.server none rw\n");
  EXPECT_TRUE(check_file(image_).ok()) << "the server may never answer";
  const DeviceNumber own = device_number(status_of(image_).st_dev);
  set_mounts("1 2 " + own.name() + " / " + tree_.path() + " rw - fuse.server none rw\n");
  EXPECT_EQ(check_file(image_).error().code, Code::in_use) << "it has just answered";
}

// Where the kernel lists no device that exposes a byte of a file, none is looked for: neither the mounts nor sysfs.
TEST_F(FakeLoop, is_looked_for_only_where_the_kernel_lists_one) {
  tree_.write("proc/partitions", "major minor  #blocks  name\n\n   8        0    1048576 sda\n");
  EXPECT_TRUE(check_file(image_).ok());
  tree_.write("proc/partitions",
              "major minor  #blocks  name\n\n   8        0    1048576 sda\n   7        0   4096 loop0\n");
  ASSERT_FALSE(check_file(image_).ok()) << "nothing is remembered";
  EXPECT_EQ(check_file(image_, FileChange::replacement).error().code, Code::in_use);
}

TEST_F(FakeDisk, has_files_beside_one_that_is_swapped_on) {
  tree_.write("proc/partitions", "major minor  #blocks  name\n");
  const std::string file = tree_.write("swapfile", "x");
  tree_.write("proc/swaps", "Filename Type Size Used Priority\n/dev/sda1 partition 1 0 -2\n" + file + " file 1 0 -3\n");
  EXPECT_TRUE(check_file(tree_.write("other", "x")).ok());
  EXPECT_EQ(check_file(file).error().code, Code::in_use);
  EXPECT_EQ(check_file(file, FileChange::replacement).error().code, Code::in_use);
}

TEST_F(FakeDisk, has_files_that_are_swapped_on) {
  const std::string file = tree_.write("swapfile", "x");
  tree_.write("proc/swaps", "Filename Type Size Used Priority\n" + file + " file 1 0 -2\n");
  for (const FileChange change : {FileChange::in_place, FileChange::replacement}) {
    const Status status = check_file(file, change);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, file + " is in use: it is swapped on");
    EXPECT_EQ(status.error().hint, "end that first: swapoff " + file);
  }
}

// The real thing: an image with a file system, shown by a loop device.
class ImageInUse : public testing::Test {
 protected:
  void SetUp() override {
    image_ = folder_.write("image", std::string(4 << 20, '\0'));
    if (!make_file_system(image_)) SKIP_OUTSIDE_CI("no mkfs.ext4 here");
    loop_ = AttachedLoop(image_);
    if (!loop_.refusal().empty()) SKIP_OUTSIDE_CI(loop_.refusal());
  }
  void mount_loop(const std::string& device, unsigned long flags = 0) {
    mount_.emplace(OwnMount::What{.source = device, .flags = flags}, folder_.path("mounted"));
    if (!mount_->mounted()) SKIP_OUTSIDE_CI("mounting is not allowed here");
  }
  static Error refusal(const std::string& name, Access access) {
    auto file = open_file(name, {.access = access, .size_bytes = 8 << 20, .allow_block_device_write = true});
    return file.ok() ? Error{Code::ok, 0, "it was opened", ""} : file.error();
  }

  ScratchFolder folder_;
  std::string image_;
  AttachedLoop loop_;
  std::optional<OwnMount> mount_;
};

TEST_F(ImageInUse, is_not_written_while_it_is_mounted) {
  ASSERT_NO_FATAL_FAILURE(mount_loop(loop_.path()));
  const std::string before = folder_.read("image");
  for (const Access access : {Access::write, Access::create, Access::replace}) {
    const Error error = refusal(image_, access);
    EXPECT_EQ(error.code, Code::in_use) << error.message;
    EXPECT_TRUE(contains(error.message, loop_.path())) << error.message;
    EXPECT_TRUE(contains(error.message, mount_->point())) << error.message;
  }
  EXPECT_TRUE(open_file(image_, {}).ok()) << "reading does no harm";
  EXPECT_EQ(folder_.read("image").size(), before.size());
}

TEST_F(ImageInUse, is_not_written_when_it_comes_into_use_after_it_was_opened_before) {
  const std::string other = folder_.write("other", std::string(64 << 10, 'x'));
  loop_.detach();  // maybe none is left
  EXPECT_EQ(refusal(other, Access::write).code, Code::ok);
  AttachedLoop loop(other);
  ASSERT_FALSE(loop.path().empty());
  for (const Access access : {Access::write, Access::create, Access::replace}) {
    EXPECT_EQ(refusal(other, access).code, Code::in_use);
  }
  loop.detach();
  EXPECT_EQ(refusal(other, Access::write).code, Code::ok);
  loop = AttachedLoop(other);
  EXPECT_EQ(refusal(other, Access::write).code, Code::in_use);
}

// The least that a device exposes.
TEST_F(ImageInUse, is_not_written_if_it_is_a_sector_long) {
  const std::string small = folder_.write("small", std::string(512, 'x'));
  const AttachedLoop loop(small);
  ASSERT_FALSE(loop.path().empty());
  EXPECT_EQ(refusal(small, Access::write).code, Code::in_use);
}

TEST_F(ImageInUse, is_not_written_while_it_is_attached) {
  EXPECT_TRUE(contains(refusal(image_, Access::write).hint, "losetup -d " + loop_.path()));
  loop_.detach();
  EXPECT_EQ(refusal(image_, Access::write).code, Code::ok);
}

TEST_F(ImageInUse, is_known_by_any_name) {
  std::filesystem::create_hard_link(image_, folder_.path("link"));
  std::filesystem::remove(image_);
  EXPECT_EQ(refusal(folder_.path("link"), Access::write).code, Code::in_use);
  folder_.write("image", "another file of the old name");
  EXPECT_EQ(refusal(image_, Access::write).code, Code::ok);
}

TEST_F(ImageInUse, may_be_replaced_where_the_device_is_read_only) {
  loop_ = AttachedLoop(image_, "--read-only");
  ASSERT_NO_FATAL_FAILURE(mount_loop(loop_.path(), MS_RDONLY));
  auto file = open_file(image_, {.access = Access::replace, .size_bytes = 10});
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(file->replacement->commit(file->buffered.get()).ok());
  EXPECT_TRUE(std::filesystem::exists(mount_->path("lost+found"))) << "the old file lives on";
}

TEST_F(ImageInUse, is_not_written_by_way_of_its_device_while_that_is_mounted) {
  ASSERT_NO_FATAL_FAILURE(mount_loop(loop_.path()));
  const Error error = refusal(loop_.path(), Access::write);
  EXPECT_EQ(error.code, Code::in_use);
  EXPECT_TRUE(contains(error.message, mount_->point())) << error.message;
}

TEST_F(ImageInUse, is_not_written_by_way_of_a_device_that_another_is_built_on) {
  const AttachedLoop upper(loop_.path());
  ASSERT_FALSE(upper.path().empty());
  ASSERT_NO_FATAL_FAILURE(mount_loop(upper.path()));
  for (const std::string& name : {loop_.path(), image_}) {
    const Error error = refusal(name, Access::write);
    EXPECT_EQ(error.code, Code::in_use) << name << ": " << error.message;
    EXPECT_TRUE(contains(error.message, upper.path() + ", which is mounted on " + mount_->point())) << error.message;
  }
}

TEST_F(ImageInUse, is_not_written_by_way_of_a_second_device) {
  const AttachedLoop second(image_);
  ASSERT_FALSE(second.path().empty());
  ASSERT_NO_FATAL_FAILURE(mount_loop(loop_.path()));
  const Error error = refusal(second.path(), Access::write);
  EXPECT_EQ(error.code, Code::in_use);
  EXPECT_TRUE(contains(error.message, loop_.path() + ", which is mounted on " + mount_->point())) << error.message;
}

}  // namespace
}  // namespace penstock::files
