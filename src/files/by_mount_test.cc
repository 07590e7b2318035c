#include "files/by_mount.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "files/file_status.h"
#include "files/test_machine.h"
#include "files/test_scratch.h"

namespace penstock::files {
namespace {

class Looks {
 public:
  std::optional<int> of(const std::optional<MountMark>& mark) {
    return known_.of(file_.get(), mark, [&] { return std::optional(++count_); });
  }
  int count() const { return count_; }

 private:
  // In the mount table, as marks without a unique id must be.
  const UniqueFd file_{::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC)};
  ByMount<int> known_;
  int count_ = 0;
};

TEST(ByMount, looks_once_for_each_mount_and_device) {
  Looks looks;
  const MountMark mark{.id = 7, .is_unique = true, .device = {8, 1}};
  EXPECT_EQ(looks.of(mark), 1);
  EXPECT_EQ(looks.of(mark), 1);
  EXPECT_EQ(looks.of(MountMark{.id = 8, .is_unique = true, .device = {8, 1}}), 2) << "the device, mounted again";
  EXPECT_EQ(looks.of(MountMark{.id = 7, .is_unique = true, .device = {8, 2}}), 3) << "another subvolume";
  EXPECT_EQ(looks.of(mark), 1);
  EXPECT_EQ(looks.count(), 3);
}

TEST(ByMount, looks_each_time_where_the_mount_is_unknown) {
  Looks looks;
  EXPECT_EQ(looks.of(std::nullopt), 1);
  EXPECT_EQ(looks.of(std::nullopt), 2);
}

TEST(ByMount, does_not_remember_that_nothing_was_found) {
  ByMount<int> known;
  const MountMark mark{.id = 7, .is_unique = true, .device = {8, 1}};
  EXPECT_EQ(known.of(-1, mark, [] { return std::optional<int>(); }), std::nullopt);
  EXPECT_EQ(known.of(-1, mark, [] { return std::optional(1); }), 1);
}

TEST(ByMount, remembers_a_bounded_number_of_mounts) {
  Looks looks;
  for (std::uint64_t id = 0; id < 1000; ++id) {
    const MountMark mark{.id = id, .is_unique = true, .device = {8, 1}};
    EXPECT_EQ(looks.of(mark), looks.of(mark));
  }
  EXPECT_EQ(looks.count(), 1000);
  looks.of(MountMark{.id = 0, .is_unique = true, .device = {8, 1}});
  EXPECT_EQ(looks.count(), 1001);
}

TEST(ByMount, does_not_remember_a_mount_that_this_process_does_not_list) {
  const ScratchFolder folder;
  ByMount<int> known;
  int looks = 0;
  const MountMark mark{.id = 7, .is_unique = false, .device = {8, 1}};
  for (int i = 0; i < 2; ++i) known.of(-1, mark, [&] { return std::optional(++looks); });
  EXPECT_EQ(looks, 2);
}

// A device number and an id that were used again would otherwise tell of another disk.
TEST(ByMount, forgets_ids_that_may_be_used_again_when_a_mount_changes) {
  const ScratchFolder folder;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr int skipped = 77;
    // As the leader of the process: its mounts are those that are watched.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      ::_exit(skipped);
    }
    Looks looks;
    const MountMark reused{.id = 7, .is_unique = false, .device = {8, 1}};
    const MountMark unique{.id = 8, .is_unique = true, .device = {8, 1}};
    looks.of(reused);
    looks.of(unique);
    looks.of(reused);
    if (looks.count() != 2) ::_exit(1);
    {
      const OwnMount mount({.source = "none", .type = "tmpfs"}, folder.path("mount"));
      if (!mount.mounted()) ::_exit(skipped);
      looks.of(reused);
      if (looks.count() != 3) ::_exit(2);
      looks.of(reused);
      if (looks.count() != 3) ::_exit(3);
    }
    looks.of(reused);
    ::_exit(looks.count() == 4 ? 0 : 4);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// A program that closes what it does not know, as daemons do.
TEST(MountChanges, are_told_after_the_descriptor_was_taken_away) {
  MountChanges changes;
  const UniqueFd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(changes.happened());
  const int taken = next.get() + 1;  // the number that it got
  ASSERT_EQ(::dup2(next.get(), taken), taken);
  EXPECT_TRUE(changes.happened()) << "anything may have happened";
  EXPECT_TRUE(::fcntl(taken, F_GETFD) >= 0) << "the program's own descriptor was closed";
  ::close(taken);
}

TEST(FileStatus, tells_what_stat_tells) {
  const ScratchFolder folder;
  const std::string name = folder.write("a", "hello");
  const UniqueFd fd(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat expected = {};
  ASSERT_EQ(::fstat(fd.get(), &expected), 0);
  const auto status = status_of(fd.get());
  ASSERT_TRUE(status);
  EXPECT_EQ(status->basic.st_dev, expected.st_dev);
  EXPECT_EQ(status->basic.st_ino, expected.st_ino);
  EXPECT_EQ(status->basic.st_mode, expected.st_mode);
  EXPECT_EQ(status->basic.st_size, expected.st_size);
  EXPECT_EQ(status->basic.st_blksize, expected.st_blksize);
  EXPECT_EQ(status->basic.st_mtim.tv_sec, expected.st_mtim.tv_sec);
  EXPECT_EQ(status->basic.st_mtim.tv_nsec, expected.st_mtim.tv_nsec);
  EXPECT_FALSE(status_of(-1));
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fstat(null.get(), &expected), 0);
  EXPECT_EQ(status_of(null.get())->basic.st_rdev, expected.st_rdev);
}

}  // namespace
}  // namespace penstock::files
