#include "files/block_device.h"

#include <gtest/gtest.h>

#include <optional>

#include "files/file_store.h"
#include "files/test_machine.h"
#include "files/test_scratch.h"
#include "files/transfer.h"

namespace penstock::files {
namespace {

class FakeQueue : public testing::Test {
 protected:
  FakeQueue() {
    tree_.write("sys/devices/sda/queue/logical_block_size", "4096\n");
    tree_.write("sys/devices/sda/mq/0/nr_tags", "256\n");
    tree_.write("sys/devices/sda/mq/1/nr_tags", "256\n");
    tree_.write("sys/devices/sda/ro", "0\n");
    tree_.write("sys/devices/sda/sda1/ro", "1\n");
    std::filesystem::create_directories(tree_.path("sys/dev/block"));
    std::filesystem::create_directory_symlink("../../devices/sda", tree_.path("sys/dev/block/8:0"));
    std::filesystem::create_directory_symlink("../../devices/sda/sda1", tree_.path("sys/dev/block/8:1"));
  }

  ScratchFolder tree_;
  const SystemRoots roots_{.proc = tree_.path("proc"), .sys = tree_.path("sys")};
};

TEST_F(FakeQueue, lends_its_queue_to_its_partitions) {
  EXPECT_EQ(queue_limit({8, 0}, "logical_block_size", roots_), 4096U);
  EXPECT_EQ(queue_limit({8, 1}, "logical_block_size", roots_), 4096U);
  EXPECT_EQ(queue_limit({8, 1}, "optimal_io_size", roots_), std::nullopt);
}

TEST_F(FakeQueue, is_one_of_several) {
  EXPECT_EQ(count_queues({8, 0}, roots_), 2U);
  EXPECT_EQ(count_queues({8, 1}, roots_), 2U) << "of its disk";
  EXPECT_EQ(count_queues({8, 2}, roots_), 0U) << "not known";
}

TEST_F(FakeQueue, tells_what_direct_transfers_want_to_know) {
  const DiskFacts facts = disk_facts({8, 1}, roots_);
  EXPECT_EQ(facts.block_bytes, 4096U);
  EXPECT_EQ(facts.optimal_bytes, 0U);
  EXPECT_EQ(facts.queues, 2U);
}

TEST_F(FakeQueue, is_read_only_where_the_kernel_says_so) {
  EXPECT_FALSE(is_read_only({8, 0}, roots_));
  EXPECT_TRUE(is_read_only({8, 1}, roots_));
  EXPECT_FALSE(is_read_only({8, 2}, roots_)) << "not known";
}

// A real block device, where the machine lets us make one.
class LoopDevice : public testing::Test {
 protected:
  static constexpr std::size_t size_bytes = 2 << 20;

  void SetUp() override {
    loop_ = AttachedLoop(folder_.write_pattern("image", size_bytes));
    device_ = loop_.path();
    if (!loop_.refusal().empty()) SKIP_OUTSIDE_CI(loop_.refusal());
  }

  ScratchFolder folder_;
  AttachedLoop loop_;
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
  EXPECT_TRUE(store.state().ok());
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
  EXPECT_TRUE(store.writer()->reserve({0, size_bytes}).ok());
  EXPECT_EQ(store.writer()->reserve({0, size_bytes + 1}).error().code, Code::out_of_range);

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

TEST_F(LoopDevice, that_is_read_only_is_called_that) {
  ASSERT_EQ(output_of("blockdev --setro " + device_ + " && echo done"), "done");
  const auto file = open_file(device_, {.access = Access::write, .allow_block_device_write = true});
  output_of("blockdev --setrw " + device_);  // it would outlive the file
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::read_only);
  EXPECT_NE(file.error().hint.find("blockdev --setrw " + device_), std::string::npos) << file.error().hint;
}

TEST_F(LoopDevice, can_not_be_replaced_by_a_file) {
  const auto file = open_file(device_, {.access = Access::replace, .allow_block_device_write = true});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::unsupported);
}

}  // namespace
}  // namespace penstock::files
