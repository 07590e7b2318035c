#include "files/may_wait.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "files/test_scratch.h"

namespace penstock::files {
namespace {

TEST(MayWait, is_not_so_on_a_disk_of_this_machine) {
  const ScratchFolder folder;
  if (may_wait(folder.path())) GTEST_SKIP() << "the kernel does not tell, or the files are a server's";
  EXPECT_FALSE(may_wait(folder.path("new"))) << "it can be made there";
  const std::string file = folder.write("file", "x");
  EXPECT_FALSE(may_wait(file));
  std::filesystem::create_symlink("file", folder.path("link"));
  EXPECT_TRUE(may_wait(folder.path("broken/file")));
}

TEST(MayWait, tells_the_status_of_what_is_there) {
  const ScratchFolder folder;
  const std::string file = folder.write("file", "hello");
  const Lookup known = look_in_memory(file);
  if (known.may_wait) GTEST_SKIP() << "the kernel does not tell, or the files are a server's";
  ASSERT_TRUE(known.status);
  EXPECT_EQ(known.status->st_size, 5);
  EXPECT_FALSE(look_in_memory(folder.path("new")).status);
}

TEST(MayWait, is_so_where_nothing_is_known) {
  EXPECT_TRUE(may_wait("/no such folder/file"));
  EXPECT_TRUE(may_wait(""));
}

}  // namespace
}  // namespace penstock::files
