// Saving a model where there is no room, or no permission, loses nothing of what was there.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "integration/context_fixture.h"
#include "integration/machine.h"

namespace penstock::test {
namespace {

class SavedModels : public ContextTest {};

TEST_F(SavedModels, stay_as_they_are_on_a_full_disk) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can mount";
  OwnMount mount({"tmpfs", "tmpfs", "size=4m"}, folder_.path("mounted"));
  if (!mount.mounted()) GTEST_SKIP() << "mounting is not allowed here";
  Context context = make_context();
  std::vector<std::byte> memory = content(1, 0, 6 << 20);
  const TensorToSave small{"a", DType::u8, {1 << 20}, Region::host(memory.data(), 1 << 20)};
  ASSERT_TRUE(save_safetensors(context, mount.path("x"), {&small, 1}).ok());
  const TensorToSave large{"a", DType::u8, {memory.size()}, Region::host(memory.data(), memory.size())};
  const Result<Report> report = save_safetensors(context, mount.path("x"), {&large, 1});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::no_space);
  EXPECT_EQ(Model::open(mount.path("x"))->size_bytes(), 1U << 20);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path("mounted")), {}), 1);
}

TEST_F(SavedModels, need_a_folder_that_can_be_written_to) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write anywhere";
  std::filesystem::create_directory(folder_.path("closed"));
  std::filesystem::permissions(folder_.path("closed"), std::filesystem::perms::owner_read);
  Context context = make_context();
  const Result<Report> report = save_safetensors(context, folder_.path("closed/x"), {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, Code::permission_denied);
}

}  // namespace
}  // namespace penstock::test
