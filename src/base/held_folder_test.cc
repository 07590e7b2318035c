#include "base/held_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace penstock {
namespace {

namespace fs = std::filesystem;

// The calling thread gets an error from openat2 from now on.
bool refuse_openat2(int error) {
  std::array program{sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                     sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 0, 1),
                     sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
                     sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// With openat2 as it is, without it, and where it is refused.
class HeldFolderTest : public testing::TestWithParam<int> {
 protected:
  HeldFolderTest() {
    std::string name = (fs::temp_directory_path() / "penstock-held-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    fs::create_directories(root_ / "tier/a/b");
    fs::create_directory(root_ / "outside");
    std::ofstream(root_ / "tier/a/b/file") << "inside";
    std::ofstream(root_ / "outside/file") << "outside";
  }
  ~HeldFolderTest() override {
    std::error_code ignored;
    fs::remove_all(root_, ignored);
  }
  void run(const std::function<void(const HeldFolder&)>& work) {
    std::thread([&] {
      if (GetParam() != 0 && !refuse_openat2(GetParam())) {
        ADD_FAILURE() << "no seccomp filter can be installed here";
        return;
      }
      const auto folder = HeldFolder::open((root_ / "tier").string());
      ASSERT_TRUE(folder.ok());
      work(*folder);
    }).join();
  }
  static int error_of(const HeldFolder& folder, const std::string& name, int flags) {
    return folder.open(name, flags) ? 0 : errno;
  }

  fs::path root_;
};

INSTANTIATE_TEST_SUITE_P(, HeldFolderTest, testing::Values(0, ENOSYS, EPERM));

TEST_P(HeldFolderTest, opens_what_lies_beneath_it) {
  run([](const HeldFolder& folder) {
    const UniqueFd file = folder.open("a/b/file", O_RDONLY);
    std::array<char, 6> text{};
    ASSERT_EQ(::read(file.get(), text.data(), text.size()), 6);
    EXPECT_EQ(std::string(text.data(), 6), "inside");
    EXPECT_EQ(error_of(folder, "", O_RDONLY | O_DIRECTORY), 0);
    EXPECT_EQ(error_of(folder, "a/b", O_PATH | O_DIRECTORY), 0);
    EXPECT_EQ(error_of(folder, "a/none/file", O_RDONLY), ENOENT);
    EXPECT_TRUE(folder.open("a/new", O_WRONLY | O_CREAT | O_EXCL, 0600));
  });
}

TEST_P(HeldFolderTest, follows_no_link_and_leaves_by_no_name) {
  fs::create_directory_symlink(root_ / "outside", root_ / "tier/out");
  fs::create_directory_symlink("../outside", root_ / "tier/relative");
  fs::create_directory_symlink("a", root_ / "tier/within");
  fs::create_symlink(root_ / "outside/file", root_ / "tier/a/link");
  run([](const HeldFolder& folder) {
    for (const char* name : {"out/file", "relative/file", "within/b/file", "a/link"}) {
      EXPECT_EQ(error_of(folder, name, O_RDONLY), ELOOP) << name;
      EXPECT_EQ(error_of(folder, name, O_WRONLY | O_TRUNC), ELOOP) << name;
    }
    EXPECT_EQ(error_of(folder, "out", O_PATH | O_DIRECTORY), ELOOP);
    EXPECT_EQ(error_of(folder, "../outside/file", O_RDONLY), EXDEV);
    EXPECT_EQ(error_of(folder, "a/../../outside/file", O_RDONLY), EXDEV);
  });
}

TEST_P(HeldFolderTest, stays_the_same_whatever_takes_its_name) {
  run([&](const HeldFolder& folder) {
    fs::rename(root_ / "tier", root_ / "moved");
    fs::create_directory_symlink(root_ / "outside", root_ / "tier");
    EXPECT_EQ(error_of(folder, "a/b/file", O_RDONLY), 0);
    EXPECT_EQ(error_of(folder, "file", O_RDONLY), ENOENT);
  });
}

TEST_P(HeldFolderTest, names_in_folders_are_split_for_calls_that_need_both) {
  run([&](const HeldFolder& folder) {
    const PathBeneath file = PathBeneath{&folder, "a"} / "b" / "file";
    EXPECT_EQ(file.text(), (root_ / "tier/a/b/file").string());
    EXPECT_EQ(file.parent().name, "a/b");
    const NameInFolder at(file);
    ASSERT_TRUE(at);
    EXPECT_EQ(::unlinkat(at.folder(), at.name(), 0), 0);
    EXPECT_FALSE(fs::exists(root_ / "tier/a/b/file"));
    EXPECT_FALSE(NameInFolder({&folder, "none/file"}));
    EXPECT_TRUE(NameInFolder({&folder, "file"}));
  });
}

}  // namespace
}  // namespace penstock
