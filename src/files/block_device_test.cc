#include "files/block_device.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <optional>

#include "files/file_store.h"
#include "files/test_scratch.h"
#include "files/transfer.h"

namespace penstock::files {
namespace {

// A disk 8:0 with partitions 8:1 and 8:2, in a tree of our own.
class FakeDisk : public testing::Test {
 protected:
  FakeDisk() {
    for (const char* folder : {"sda", "sda/sda1", "sda/sda2"}) {
      std::filesystem::create_directories(tree_.path(std::string("sys/devices/") + folder + "/holders"));
    }
    tree_.write("sys/devices/sda/dev", "8:0\n");
    tree_.write("sys/devices/sda/sda1/dev", "8:1\n");
    tree_.write("sys/devices/sda/sda1/partition", "1\n");
    tree_.write("sys/devices/sda/sda2/dev", "8:2\n");
    tree_.write("sys/devices/sda/sda2/partition", "2\n");
    tree_.write("sys/devices/sda/queue/logical_block_size", "4096\n");
    std::filesystem::create_directories(tree_.path("sys/dev/block"));
    link("8:0", "sda");
    link("8:1", "sda/sda1");
    link("8:2", "sda/sda2");
    set_mounts("");
  }
  void link(const std::string& number, const std::string& folder) {
    std::filesystem::create_directory_symlink("../../devices/" + folder, tree_.path("sys/dev/block/" + number));
  }
  void set_mounts(const std::string& text) { tree_.write("proc/self/mountinfo", text); }
  Status check(DeviceNumber device) const {
    return check_unused(device, "/dev/test", {.proc = tree_.path("proc"), .sys = tree_.path("sys")});
  }

  ScratchFolder tree_;
};

TEST_F(FakeDisk, that_nothing_uses_is_free) {
  EXPECT_TRUE(check({8, 0}).ok());
  EXPECT_TRUE(check({8, 1}).ok());
}

TEST_F(FakeDisk, is_in_use_when_it_is_mounted) {
  set_mounts("1 2 8:0 / /data rw - ext4 /dev/sda rw\n");
  const Status status = check({8, 0});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::in_use);
  EXPECT_NE(status.error().message.find("/data"), std::string::npos);
}

TEST_F(FakeDisk, is_in_use_when_a_partition_is_mounted) {
  set_mounts("1 2 8:2 / /data rw - ext4 /dev/sda2 rw\n");
  EXPECT_EQ(check({8, 0}).error().code, Code::in_use);
}

TEST_F(FakeDisk, has_partitions_that_are_in_use_when_the_whole_is_mounted) {
  set_mounts("1 2 8:0 / /data rw - ext4 /dev/sda rw\n");
  EXPECT_EQ(check({8, 1}).error().code, Code::in_use);
}

TEST_F(FakeDisk, has_partitions_that_do_not_care_for_their_neighbours) {
  set_mounts("1 2 8:2 / /data rw - ext4 /dev/sda2 rw\n");
  EXPECT_TRUE(check({8, 1}).ok());
}

TEST_F(FakeDisk, is_in_use_when_it_or_a_partition_is_held) {
  tree_.write("sys/devices/sda/sda1/holders/dm-0", "");
  for (const DeviceNumber device : {DeviceNumber{8, 0}, DeviceNumber{8, 1}}) {
    const Status status = check(device);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::in_use);
    EXPECT_NE(status.error().message.find("dm-0"), std::string::npos);
  }
  EXPECT_TRUE(check({8, 2}).ok());
}

TEST_F(FakeDisk, is_not_written_to_when_the_system_can_not_be_asked) {
  EXPECT_EQ(check({8, 7}).error().code, Code::unsupported);
  std::filesystem::remove_all(tree_.path("proc"));
  EXPECT_EQ(check({8, 0}).error().code, Code::unsupported);
}

TEST_F(FakeDisk, lends_its_queue_to_its_partitions) {
  const SystemRoots roots{.proc = tree_.path("proc"), .sys = tree_.path("sys")};
  EXPECT_EQ(queue_limit({8, 0}, "logical_block_size", roots), 4096U);
  EXPECT_EQ(queue_limit({8, 1}, "logical_block_size", roots), 4096U);
  EXPECT_EQ(queue_limit({8, 1}, "optimal_io_size", roots), std::nullopt);
}

std::string output_of(const std::string& command) {
  std::string output;
  FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr) return {};
  std::array<char, 256> text{};
  while (std::fgets(text.data(), text.size(), pipe) != nullptr) output += text.data();
  ::pclose(pipe);
  while (!output.empty() && output.back() == '\n') output.pop_back();
  return output;
}

// A real block device, where the machine lets us make one.
class LoopDevice : public testing::Test {
 protected:
  static constexpr std::size_t size_bytes = 16 << 20;

  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can make a loop device";
    image_ = folder_.write_pattern("image", size_bytes);
    device_ = output_of("losetup --find --show '" + image_ + "' 2>/dev/null");
    if (device_.empty()) GTEST_SKIP() << "losetup can't make a loop device here";
  }
  ~LoopDevice() override {
    if (!device_.empty()) output_of("losetup --detach " + device_ + " 2>&1");
  }

  ScratchFolder folder_;
  std::string image_;
  std::string device_;
};

TEST_F(LoopDevice, is_read_and_tells_its_size_and_block) {
  auto file = open_file(device_, {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->info.kind, StoreKind::block_device);
  EXPECT_EQ(file->info.file_system, "block");
  EXPECT_EQ(file->info.size_bytes, size_bytes);
  EXPECT_EQ(file->info.block_bytes, 512U);
  EXPECT_TRUE(file->info.direct);
  EXPECT_FALSE(file->info.writable);
  FileStore store(std::move(*file));
  AlignedMemory memory(8192);
  const engine::Op op{
      .path = engine::Path::direct, .store = &store, .offset = 4096, .length = 8192, .memory = memory.data()};
  EXPECT_EQ(transfer(op).bytes, 8192U);
  EXPECT_TRUE(has_pattern(memory.data(), 4096, 8192));
  EXPECT_TRUE(store.identity().ok());
}

TEST_F(LoopDevice, is_written_only_with_the_explicit_word) {
  const auto refused = open_file(device_, {.access = Access::write});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::read_only);
  EXPECT_FALSE(refused.error().hint.empty());

  auto file = open_file(device_, {.access = Access::write, .allow_block_device_write = true});
  ASSERT_TRUE(file.ok()) << file.error().message;
  FileStore store(std::move(*file));
  ASSERT_NE(store.writer(), nullptr);
  EXPECT_EQ(store.writer()->edges(), engine::Writer::Edges::blocks);
  EXPECT_TRUE(store.writer()->reserve(size_bytes).ok());
  EXPECT_EQ(store.writer()->reserve(size_bytes + 1).error().code, Code::out_of_range);

  AlignedMemory memory(4096);
  std::fill_n(memory.data(), 4096, std::byte{7});
  engine::Op op{.kind = engine::OpKind::write,
                .path = engine::Path::direct,
                .store = &store,
                .offset = 0,
                .length = 4096,
                .memory = memory.data()};
  EXPECT_EQ(transfer(op).bytes, 4096U);
  op = {.kind = engine::OpKind::zero, .store = &store, .offset = 4096, .length = 4096};
  EXPECT_EQ(transfer(op).bytes, 4096U);
  op = {.kind = engine::OpKind::deallocate, .store = &store, .offset = 8192, .length = 4096};
  EXPECT_EQ(transfer(op).code, Code::ok);
  EXPECT_TRUE(store.writer()->commit().ok());
  const std::string image = folder_.read("image");
  EXPECT_EQ(image[4095], 7);
  EXPECT_EQ(image[4096], 0);
  EXPECT_EQ(static_cast<std::byte>(image[12288]), pattern_at(12288));
}

TEST_F(LoopDevice, is_held_exclusively_while_it_is_open_for_writing) {
  const OpenOptions options{.access = Access::write, .allow_block_device_write = true};
  const auto first = open_file(device_, options);
  ASSERT_TRUE(first.ok()) << first.error().message;
  const auto second = open_file(device_, options);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, Code::in_use);
}

TEST_F(LoopDevice, is_never_written_while_it_is_mounted) {
  if (std::system(("mkfs.ext4 -q -F " + device_ + " >/dev/null 2>&1").c_str()) != 0) GTEST_SKIP() << "no mkfs.ext4";
  const std::string point = folder_.path("mounted");
  std::filesystem::create_directory(point);
  if (::mount(device_.c_str(), point.c_str(), "ext4", 0, nullptr) != 0) GTEST_SKIP() << "mounting is not allowed here";
  const auto file = open_file(device_, {.access = Access::write, .allow_block_device_write = true});
  ::umount(point.c_str());
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::in_use);
  EXPECT_NE(file.error().message.find(point), std::string::npos) << file.error().message;
}

TEST_F(LoopDevice, can_not_be_replaced_by_a_file) {
  const auto file = open_file(device_, {.access = Access::replace, .allow_block_device_write = true});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::unsupported);
}

}  // namespace
}  // namespace penstock::files
