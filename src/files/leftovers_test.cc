#include "penstock/leftovers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "files/leftovers.h"
#include "files/replacement.h"
#include "files/test_scratch.h"

namespace penstock::files {
namespace {

TEST(TemporaryNames, are_known_again) {
  const std::string longest(255, 'n');
  for (const std::string& name :
       {random_name("a"), random_name(longest), numbered_name("a", 0), numbered_name(longest, numbered_names - 1)}) {
    EXPECT_TRUE(is_temporary_name(name)) << name;
    EXPECT_LE(unlockable_name(name).size(), 255U);
  }
}

TEST(TemporaryNames, are_random_or_of_one_target_and_number) {
  EXPECT_NE(random_name("a"), random_name("a"));
  EXPECT_EQ(numbered_name("a", 1), numbered_name("a", 1));
  EXPECT_NE(numbered_name("a", 1), numbered_name("a", 2));
  EXPECT_NE(numbered_name(std::string(255, 'n'), 1), numbered_name(std::string(254, 'n'), 1));
}

TEST(TemporaryNames, are_nothing_else) {
  for (const char* name : {"", ".", ".part", "a.0123456789abcdef.part", "..0123456789abcdef.part",
                           ".a.0123456789abcde.part", ".a.0123456789ABCDEF.part", ".a.0123456789abcdef.part.",
                           ".a0123456789abcdef.part", ".a.0123456789abcdefpart"}) {
    EXPECT_FALSE(is_temporary_name(name)) << name;
  }
  EXPECT_FALSE(is_temporary_name(unlockable_name(random_name("a"))));
}

TEST(Leftovers, are_removed_unless_somebody_holds_their_lock) {
  const ScratchFolder folder;
  folder.write(".a.0123456789abcdef.part", "left");
  const std::string busy = folder.write(".b.0123456789abcdef.part", "being written");
  const UniqueFd writer(::open(busy.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(try_lock(writer.get()), Lock::held);
  const auto found = remove_leftovers(folder.path());
  ASSERT_TRUE(found.ok()) << found.error().message;
  ASSERT_EQ(found->size(), 2U);
  EXPECT_EQ((*found)[0].path, folder.path(".a.0123456789abcdef.part"));
  EXPECT_FALSE((*found)[0].kept);
  ASSERT_TRUE((*found)[1].kept);
  EXPECT_EQ((*found)[1].kept->code, Code::in_use);
  EXPECT_EQ(folder.file_count(), 1U);
}

// As an NFS server's clients hold theirs.
TEST(Leftovers, are_left_where_a_range_is_locked) {
  const ScratchFolder folder;
  const std::string busy = folder.write(".a.0123456789abcdef.part", "being written elsewhere");
  const UniqueFd writer(::open(busy.c_str(), O_RDWR | O_CLOEXEC));
  struct flock all = {};
  all.l_type = F_WRLCK;
  all.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(writer.get(), F_OFD_SETLK, &all), 0);
  const auto found = remove_leftovers(folder.path());
  ASSERT_TRUE(found.ok() && found->size() == 1 && found->front().kept);
  EXPECT_EQ(found->front().kept->code, Code::in_use);
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(Leftovers, are_only_told_of_in_a_dry_run) {
  const ScratchFolder folder;
  folder.write(".a.0123456789abcdef.part", "left");
  const auto found = remove_leftovers(folder.path(), {.dry_run = true});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->size(), 1U);
  EXPECT_EQ(folder.file_count(), 1U);
}

// A file system of a kind that we don't know may be one that shows its locks to this machine alone. That of message
// queues is such a one, and has files.
TEST(Leftovers, are_left_where_a_lock_proves_nothing) {
  const ScratchFolder folder;
  const std::string left = folder.path(".a.0123456789abcdef.part");
  bool mounted = false;
  // Mounts are a thread's own, if it likes.
  std::thread([&] {
    mounted = ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount("none", folder.path().c_str(), "mqueue", 0, nullptr) == 0;
    if (!mounted) return;
    ASSERT_TRUE(UniqueFd(::open(left.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)));
    const auto found = remove_leftovers(folder.path());
    ASSERT_TRUE(found.ok() && found->size() == 1 && found->front().kept);
    EXPECT_EQ(found->front().kept->code, Code::unsupported);
    EXPECT_EQ(::access(left.c_str(), F_OK), 0);
    EXPECT_TRUE(remove_leftovers(folder.path(), {.remote = true}).ok());
    EXPECT_NE(::access(left.c_str(), F_OK), 0);
  }).join();
  if (!mounted) GTEST_SKIP() << "no file system of an unknown kind can be mounted here";
}

TEST(Leftovers, are_never_made_of_files_that_live) {
  const ScratchFolder folder;
  std::atomic<bool> ended = false;
  std::thread cleaner([&] {
    while (!ended) EXPECT_TRUE(remove_leftovers(folder.path()).ok());
  });
  for (int i = 0; i < 200; ++i) {
    auto replacement = Replacement::create(folder.path("a"));
    ASSERT_TRUE(replacement.ok()) << replacement.error().message;
    const UniqueFd fd((*replacement)->open(O_RDWR));
    EXPECT_TRUE(fd);
    EXPECT_TRUE((*replacement)->commit(fd.get(), false).ok());
  }
  ended = true;
  cleaner.join();
  EXPECT_EQ(folder.file_count(), 1U);
}

TEST(Leftovers, are_not_looked_for_any_more_when_that_is_enough) {
  const ScratchFolder folder;
  folder.write(".a.0123456789abcdef.part", "left");
  const auto found = remove_leftovers(folder.path(), {.keep_going = [] { return false; }});
  ASSERT_TRUE(found.ok() && found->size() == 1);
  EXPECT_EQ(found->front().kept->code, Code::cancelled);
  EXPECT_EQ(folder.file_count(), 1U);
}

}  // namespace
}  // namespace penstock::files
