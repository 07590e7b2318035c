// Writes that do not fit lose nothing of what was there.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "integration/context_fixture.h"
#include "integration/machine.h"

namespace penstock::test {
namespace {

class FullDisk : public ContextTest {
 protected:
  // Fills the file system's room with a file that is longer than the rest.
  void check(OwnMount& mount, std::size_t room_bytes) {
    Context context = make_context();
    const std::string path = mount.path("file");
    const std::size_t kept = 1 << 20;
    write_file(path, content(1, 0, kept));
    std::vector<std::byte> memory(room_bytes);
    {
      const Store store = context.open(path, {.access = Access::write}).value();
      const Report report = context.write(store, 100, Region::host(memory.data(), memory.size()), {.durable = true});
      ASSERT_FALSE(report.ok());
      EXPECT_EQ(report.error->code, Code::no_space) << message_of(report);
      EXPECT_FALSE(report.error->hint.empty());
      EXPECT_EQ(read_file(path).size(), kept) << "the size is as it was";
      EXPECT_TRUE(holds_content(read_file(path), 1, 0)) << "and so is the content";
      EXPECT_TRUE(context.write(store, kept, Region::host(memory.data(), 5000), {.durable = true}).ok());
    }
    const auto made = context.open(mount.path("new"), {.access = Access::create, .size_bytes = room_bytes});
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, Code::no_space);
    EXPECT_FALSE(std::filesystem::exists(mount.path("new")));
    const auto replaced = context.open(path, {.access = Access::replace, .size_bytes = room_bytes});
    ASSERT_FALSE(replaced.ok());
    EXPECT_EQ(replaced.error().code, Code::no_space);
    EXPECT_EQ(read_file(path).size(), kept + 5000);
  }
};

TEST_F(FullDisk, in_memory_loses_nothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount";
  OwnMount mount({"tmpfs", "tmpfs", "size=4m"}, folder_.path("mounted"));
  if (!mount.mounted()) GTEST_SKIP() << "mounting is not allowed here";
  check(mount, 6 << 20);
}

TEST_F(FullDisk, on_a_device_loses_nothing) {
  write_file(folder_.path("image"), {});
  std::filesystem::resize_file(folder_.path("image"), 16 << 20);
  const AttachedLoop device(folder_.path("image"));
  if (!device.refusal().empty()) GTEST_SKIP() << device.refusal();
  if (!make_file_system(device.path())) GTEST_SKIP() << "no mkfs.ext4 here";
  OwnMount mount({.source = device.path()}, folder_.path("mounted"));
  if (!mount.mounted()) GTEST_SKIP() << "mounting is not allowed here";
  check(mount, 20 << 20);
}

}  // namespace
}  // namespace penstock::test
