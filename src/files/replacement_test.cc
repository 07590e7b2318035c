#include "files/replacement.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/test_syncs.h"
#include "base/unique_fd.h"
#include "files/file_store.h"
#include "files/leftovers.h"
#include "files/test_scratch.h"
#include "penstock/leftovers.h"

namespace penstock::files {
namespace {

std::string attribute(const std::string& path, const char* name) {
  char value[256];
  const ssize_t size = ::getxattr(path.c_str(), name, value, sizeof value);
  return size < 0 ? "none" : std::string(value, static_cast<std::size_t>(size));
}

class Replace : public testing::Test {
 protected:
  std::unique_ptr<FileStore> open(const std::string& name, std::uint64_t size_bytes = 0) {
    auto file = open_file(name, {.access = Access::replace, .size_bytes = size_bytes});
    if (!file) {
      ADD_FAILURE() << file.error().message;
      return nullptr;
    }
    return std::make_unique<FileStore>(std::move(*file));
  }
  static void put(const FileStore& store, const std::string& text) {
    ASSERT_EQ(::pwrite(store.buffered_fd(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }

  ScratchFolder folder_;
};

TEST_F(Replace, takes_the_name_when_committed) {
  const std::string name = folder_.write("a", "old");
  auto store = open(name);
  put(*store, "new content");
  EXPECT_EQ(folder_.read("a"), "old");
  ASSERT_TRUE(store->writer()->commit().ok());
  EXPECT_EQ(folder_.read("a"), "new content");
  EXPECT_TRUE(store->writer()->commit().ok());
  EXPECT_TRUE(store->writer()->abort().ok());
  store.reset();
  EXPECT_EQ(folder_.read("a"), "new content");
  EXPECT_EQ(folder_.file_count(), 1U);
}

TEST_F(Replace, holds_what_it_replaced_until_that_is_taken) {
  const std::string name = folder_.write("a", "old");
  auto store = open(name);
  if (store->info().locality != Locality::local) GTEST_SKIP() << "the temporary folder is on no local disk";
  const UniqueFd old(::open(name.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat before = {};
  ASSERT_EQ(::fstat(old.get(), &before), 0);
  const auto is_held = [&] {
    for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
      struct stat status = {};
      const int fd = std::stoi(each.path().filename().string());
      if (fd != old.get() && ::fstat(fd, &status) == 0 && status.st_ino == before.st_ino) return true;
    }
    return false;
  };
  EXPECT_FALSE(is_held());
  ASSERT_TRUE(store->writer()->commit(false));
  EXPECT_TRUE(is_held());
  auto replaced = store->writer()->take_replaced();
  EXPECT_TRUE(replaced);
  EXPECT_FALSE(store->writer()->take_replaced());
  EXPECT_TRUE(is_held());
  replaced.reset();
  EXPECT_FALSE(is_held());
  auto fresh = open(folder_.path("new"));
  ASSERT_TRUE(fresh->writer()->commit(false));
  EXPECT_FALSE(fresh->writer()->take_replaced()) << "there was none";
}

TEST_F(Replace, takes_the_name_also_without_a_sync) {
  auto store = open(folder_.write("a", "old"));
  put(*store, "new content");
  ASSERT_TRUE(store->writer()->commit(false).ok());
  EXPECT_EQ(folder_.read("a"), "new content");
  EXPECT_TRUE(store->writer()->commit().ok()) << "which may come later";
  EXPECT_EQ(folder_.file_count(), 1U);
}

TEST_F(Replace, syncs_the_file_before_it_takes_the_name_and_the_folder_after) {
  const std::string name = folder_.write("a", "old");
  const std::string folder = folder_.path();
  auto store = open(name);
  put(*store, "new content");
  const auto syncs = test::syncs_of([&] { EXPECT_TRUE(store->writer()->commit().ok()); });
  ASSERT_EQ(syncs.size(), 2U);
  EXPECT_TRUE(syncs[0].starts_with(folder + "/")) << syncs[0];
  EXPECT_NE(syncs[0], name) << "it has not the name yet";
  EXPECT_EQ(syncs[1], folder);
  store = open(name);
  EXPECT_EQ(test::syncs_of([&] { EXPECT_TRUE(store->writer()->commit(false).ok()); }), std::vector<std::string>());
}

TEST_F(Replace, keeps_the_old_file_where_the_new_one_can_not_be_synced_and_says_where_only_the_name_can_not) {
  const std::string name = folder_.write("a", "old");
  auto store = open(name);
  put(*store, "new content");
  const std::string temporary = test::syncs_of([&] { static_cast<void>(::fsync(store->buffered_fd())); }).at(0);
  test::syncs_of(
      [&] {
        const Status refused = store->writer()->commit();
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().system_error, EIO);
      },
      temporary);
  EXPECT_EQ(folder_.read("a"), "old");
  test::syncs_of(
      [&] {
        const Status named = store->writer()->commit();
        ASSERT_FALSE(named.ok());
        EXPECT_EQ(named.error().code, Code::not_durable);
      },
      folder_.path());
  EXPECT_EQ(folder_.read("a"), "new content");
  EXPECT_TRUE(store->writer()->commit().ok()) << "tried again";
}

TEST_F(Replace, follows_no_link_of_another_user_in_a_folder_that_is_anyones) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
  constexpr uid_t other = 65534;
  const std::string secret = folder_.write("secret", "mine");
  const std::string shared = folder_.path("shared");
  const std::string link = shared + "/link";
  ASSERT_EQ(::mkdir(shared.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(shared.c_str(), 01777), 0);
  const auto replace = [&](uid_t owner) {
    static_cast<void>(::unlink(link.c_str()));
    EXPECT_EQ(::symlink(secret.c_str(), link.c_str()), 0);
    EXPECT_EQ(::lchown(link.c_str(), owner, owner), 0);
    return open_file(link, {.access = Access::replace});
  };
  const auto refused = replace(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::permission_denied);
  EXPECT_EQ(folder_.read("secret"), "mine");
  EXPECT_TRUE(replace(0).ok());
  ASSERT_EQ(::chown(shared.c_str(), other, other), 0);
  EXPECT_TRUE(replace(other).ok()) << "it is his folder";
  ASSERT_EQ(::chown(shared.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(shared.c_str(), 0755), 0);
  EXPECT_TRUE(replace(other).ok()) << "only root can have put it there";
}

TEST_F(Replace, gives_nothing_to_who_has_put_a_file_of_that_name_into_a_folder_that_is_anyones) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
  constexpr uid_t other = 65534;
  const std::string shared = folder_.path("shared");
  const std::string name = shared + "/a";
  ASSERT_EQ(::mkdir(shared.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(shared.c_str(), 01777), 0);
  folder_.write("shared/a", "old");
  for (const Access access : {Access::replace, Access::create}) {
    ASSERT_EQ(::chown(name.c_str(), other, other), 0);
    const auto refused = open_file(name, {.access = access});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::permission_denied);
    EXPECT_EQ(folder_.read("shared/a"), "old");
    ASSERT_EQ(::chown(name.c_str(), 0, 0), 0);
    EXPECT_TRUE(open_file(name, {.access = access}).ok());
  }
  EXPECT_TRUE(open_file(name, {.access = Access::write}).ok());
}

// Also where the link leads to a file that is yet to be made, and the kernel would follow it.
TEST_F(Replace, in_place_follows_no_link_of_another_user_in_a_folder_that_is_anyones) {
  if (::geteuid() != 0) GTEST_SKIP() << "takes root, for a second user";
  constexpr uid_t other = 65534;
  const std::string shared = folder_.path("shared");
  const std::string link = shared + "/link";
  ASSERT_EQ(::mkdir(shared.c_str(), 0777), 0);
  ASSERT_EQ(::chmod(shared.c_str(), 01777), 0);
  folder_.write("secret", "mine");
  for (const Access access : {Access::create, Access::write}) {
    for (const std::string to : {"secret", "new"}) {
      const auto write = [&](uid_t owner) {
        static_cast<void>(::unlink(link.c_str()));
        EXPECT_EQ(::symlink(folder_.path(to).c_str(), link.c_str()), 0);
        EXPECT_EQ(::lchown(link.c_str(), owner, owner), 0);
        return open_file(link, {.access = access, .size_bytes = 100});
      };
      const auto refused = write(other);
      ASSERT_FALSE(refused.ok()) << to;
      const bool is_missing = access == Access::write && to == "new";
      EXPECT_EQ(refused.error().code, is_missing ? Code::not_found : Code::permission_denied) << to;
      EXPECT_EQ(folder_.read("secret"), "mine");
      EXPECT_FALSE(std::filesystem::exists(folder_.path("new")));
      if (access == Access::write) continue;
      EXPECT_TRUE(write(0).ok()) << to;
      EXPECT_TRUE(std::filesystem::exists(folder_.path(to)));
      folder_.write("secret", "mine");
      std::filesystem::remove(folder_.path("new"));
    }
  }
}

// Also where its path has come to lead elsewhere.
TEST_F(Replace, happens_in_the_folder_of_a_descriptor) {
  for (const char* folder : {"meant", "other"}) {
    ASSERT_EQ(::mkdir(folder_.path(folder).c_str(), 0755), 0);
    folder_.write(std::string(folder) + "/a", folder);
  }
  ASSERT_EQ(::chmod(folder_.path("meant/a").c_str(), 0640), 0);
  ASSERT_EQ(::chmod(folder_.path("other/a").c_str(), 0604), 0);
  const bool has_attributes = ::setxattr(folder_.path("other/a").c_str(), "user.of", "other", 5, 0) == 0 &&
                              ::setxattr(folder_.path("meant/a").c_str(), "user.of", "meant", 5, 0) == 0;
  const UniqueFd meant(::open(folder_.path("meant").c_str(), O_PATH | O_DIRECTORY));
  auto file = open_file(folder_.path("other/a"), {.access = Access::replace, .descriptor = meant.get()});
  ASSERT_TRUE(file.ok()) << file.error().message;
  FileStore store(std::move(*file));
  put(store, "new");
  ASSERT_TRUE(store.writer()->commit().ok());
  EXPECT_EQ(folder_.read("other/a"), "other");
  EXPECT_EQ(folder_.read("meant/a"), "new");
  struct stat status = {};
  ASSERT_EQ(::stat(folder_.path("meant/a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
  EXPECT_EQ(attribute(folder_.path("meant/a"), "user.of"), has_attributes ? "meant" : "none");

  ASSERT_EQ(::symlink(folder_.path("other/a").c_str(), folder_.path("meant/link").c_str()), 0);
  EXPECT_FALSE(open_file(folder_.path("meant/link"), {.access = Access::replace, .descriptor = meant.get()}).ok());
  EXPECT_FALSE(open_file(folder_.path("meant/a"), {.access = Access::replace, .descriptor = 1'000'000}).ok());
  EXPECT_EQ(folder_.read("other/a"), "other");
}

TEST_F(Replace, makes_a_file_where_there_was_none) {
  auto store = open(folder_.path("new"), 4096);
  EXPECT_EQ(store->info().size_bytes, 4096U);
  EXPECT_TRUE(store->state().ok());
  EXPECT_FALSE(std::filesystem::exists(folder_.path("new")));
  ASSERT_TRUE(store->writer()->commit().ok());
  EXPECT_EQ(std::filesystem::file_size(folder_.path("new")), 4096U);
}

TEST_F(Replace, vanishes_when_aborted) {
  auto store = open(folder_.write("a", "old"));
  put(*store, "new");
  EXPECT_EQ(folder_.file_count(), 2U);
  EXPECT_TRUE(store->writer()->abort().ok());
  EXPECT_TRUE(store->writer()->abort().ok());
  EXPECT_EQ(folder_.file_count(), 1U);
  EXPECT_EQ(store->writer()->commit().error().code, Code::invalid_argument);
  EXPECT_EQ(folder_.read("a"), "old");
}

TEST_F(Replace, vanishes_when_it_is_destroyed_without_commit) {
  open(folder_.write("a", "old")).reset();
  EXPECT_EQ(folder_.file_count(), 1U);
  EXPECT_EQ(folder_.read("a"), "old");
}

TEST_F(Replace, leaves_nothing_behind_when_there_is_no_room) {
  const auto file =
      open_file(folder_.write("a", "old"), {.access = Access::replace, .size_bytes = std::uint64_t{1} << 62});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::no_space);
  EXPECT_EQ(folder_.file_count(), 1U);
}

TEST_F(Replace, keeps_the_mode_of_the_file_that_was_there) {
  const std::string name = folder_.write("a", "old");
  ASSERT_EQ(::chmod(name.c_str(), 0640), 0);
  ASSERT_TRUE(open(name)->writer()->commit().ok());
  struct stat status = {};
  ASSERT_EQ(::stat(name.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0640U);
}

// acl(5): the version, then tag, permissions and who of each entry.
std::string acl_of(std::uint32_t named_user) {
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t who;
  };
  constexpr std::uint32_t version = 2, nobody_in_particular = UINT32_MAX;
  const Entry entries[] = {{0x01, 6, nobody_in_particular},
                           {0x02, 4, named_user},
                           {0x04, 0, nobody_in_particular},
                           {0x10, 4, nobody_in_particular},
                           {0x20, 0, nobody_in_particular}};
  std::string bytes(reinterpret_cast<const char*>(&version), sizeof version);
  return bytes.append(reinterpret_cast<const char*>(entries), sizeof entries);
}

TEST_F(Replace, keeps_the_attributes_and_the_acl_of_the_file_that_was_there) {
  const std::string name = folder_.write("a", "old");
  const std::string acl = acl_of(12345);
  if (::setxattr(name.c_str(), "user.origin", "here", 4, 0) != 0) GTEST_SKIP() << "no attributes on this file system";
  const bool has_acl = ::setxattr(name.c_str(), "system.posix_acl_access", acl.data(), acl.size(), 0) == 0;
  ASSERT_TRUE(open(name)->writer()->commit().ok());
  EXPECT_EQ(attribute(name, "user.origin"), "here");
  if (!has_acl) GTEST_SKIP() << "no ACLs on this file system";
  EXPECT_EQ(attribute(name, "system.posix_acl_access"), acl);
}

TEST_F(Replace, gives_the_acl_of_its_folder_to_new_files_alone) {
  const std::string name = folder_.write("a", "old");
  const std::string acl = acl_of(12345);
  if (::setxattr(folder_.path().c_str(), "system.posix_acl_default", acl.data(), acl.size(), 0) != 0) {
    GTEST_SKIP() << "no ACLs on this file system";
  }
  ASSERT_TRUE(open(name)->writer()->commit().ok());
  EXPECT_EQ(attribute(name, "system.posix_acl_access"), "none");
  ASSERT_TRUE(open(folder_.path("new"))->writer()->commit().ok());
  EXPECT_NE(attribute(folder_.path("new"), "system.posix_acl_access"), "none");
}

TEST_F(Replace, leaves_no_lock_on_the_file_that_took_the_name) {
  const std::string name = folder_.write("a", "old");
  const auto store = open(name);
  // A child that was forked meanwhile, and lives on, shares the lock.
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(ends[1]);
    char none = 0;
    ::_exit(static_cast<int>(::read(ends[0], &none, 1)));
  }
  ::close(ends[0]);
  ASSERT_TRUE(store->writer()->commit().ok());
  const UniqueFd committed(::open(name.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(try_lock(committed.get()), Lock::held);
  ::close(ends[1]);
  ::waitpid(child, nullptr, 0);
}

TEST_F(Replace, is_neither_committed_nor_aborted_by_a_forked_child) {
  const std::string name = folder_.write("a", "old");
  const auto store = open(name);
  put(*store, "new");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused =
        store->writer()->commit().error().code == Code::closed && store->writer()->abort().error().code == Code::closed;
    ::_exit(refused ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder_.read("a"), "old");
  EXPECT_TRUE(store->writer()->commit().ok());
  EXPECT_EQ(folder_.read("a"), "new");
}

TEST_F(Replace, removes_what_dead_writers_left_of_the_name_before_it_makes_room) {
  const std::string name = folder_.path("a");
  // Two were written at once, and the first got its name: what the second left is behind a gap.
  folder_.write(numbered_name("a", 1), "left");
  folder_.write(numbered_name("a", numbered_names - 1), "left");
  folder_.write(numbered_name("b", 0), "left of another name");
  folder_.write(numbered_name("a.b", 0), "and of another");
  const auto lives = open(name);
  EXPECT_EQ(folder_.file_count(), 3U);
  const auto store = open(name);
  EXPECT_EQ(folder_.file_count(), 4U) << "the one that lives is kept";
  EXPECT_TRUE(lives->writer()->commit().ok());
  EXPECT_TRUE(store->writer()->commit().ok());
  EXPECT_EQ(folder_.file_count(), 3U);
}

// Earlier versions gave random names, which are found by reading the folder alone.
TEST_F(Replace, does_not_read_the_folder) {
  const std::string name = folder_.write("a", "old");
  folder_.write(".a.0123456789abcdef.part", "left by an earlier version");
  ASSERT_TRUE(open(name)->writer()->commit().ok());
  EXPECT_EQ(folder_.file_count(), 2U);
  EXPECT_EQ(remove_leftovers(folder_.path()).value().size(), 1U);
  EXPECT_EQ(folder_.file_count(), 1U);
}

TEST_F(Replace, has_room_for_more_writers_of_a_name_than_there_are_numbers) {
  const std::string name = folder_.write("a", "old");
  std::vector<std::unique_ptr<FileStore>> stores;
  for (std::uint32_t i = 0; i < numbered_names + 3; ++i) {
    stores.push_back(open(name));
    ASSERT_NE(stores.back(), nullptr);
    put(*stores.back(), std::to_string(i));
  }
  EXPECT_EQ(folder_.file_count(), 1 + stores.size());
  for (std::size_t i = 0; i < stores.size(); ++i) {
    ASSERT_TRUE(stores[i]->writer()->commit(false).ok());
    EXPECT_EQ(folder_.read("a"), std::to_string(i));
  }
  EXPECT_EQ(folder_.file_count(), 1U);
}

TEST_F(Replace, passes_over_names_that_are_something_else) {
  const std::string name = folder_.write("a", "old");
  folder_.write("precious", "precious");
  std::filesystem::create_symlink(folder_.path("precious"), folder_.path(numbered_name("a", 0)));
  std::filesystem::create_directory(folder_.path(numbered_name("a", 1)));
  ASSERT_EQ(::mkfifo(folder_.path(numbered_name("a", 2)).c_str(), 0600), 0);
  std::filesystem::create_hard_link(folder_.path("precious"), folder_.path(numbered_name("a", 3)));
  auto store = open(name);
  put(*store, "new");
  ASSERT_TRUE(store->writer()->commit().ok());
  EXPECT_EQ(folder_.read("a"), "new");
  EXPECT_EQ(folder_.read("precious"), "precious");
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path(numbered_name("a", 0))));
}

// Something has removed its file, and the name is another writer's now.
TEST_F(Replace, touches_only_its_own_file) {
  const std::string name = folder_.write("a", "old");
  auto robbed = open(name);
  ASSERT_TRUE(std::filesystem::remove(folder_.path(numbered_name("a", 0))));
  auto store = open(name);
  put(*store, "new");
  EXPECT_EQ(robbed->writer()->commit().error().code, Code::not_found);
  EXPECT_TRUE(robbed->writer()->abort().ok());
  robbed.reset();
  EXPECT_EQ(folder_.read("a"), "old");
  ASSERT_TRUE(store->writer()->commit().ok());
  EXPECT_EQ(folder_.read("a"), "new");
}

TEST_F(Replace, opens_only_its_own_file) {
  const std::string name = folder_.write("a", "old");
  auto robbed = Replacement::create(name);
  ASSERT_TRUE(robbed.ok());
  ASSERT_TRUE(std::filesystem::remove(folder_.path(numbered_name("a", 0))));
  auto store = open(name);
  EXPECT_LT((*robbed)->open(O_RDWR), 0);
  EXPECT_EQ(errno, ENOENT);
}

// As many writers of one name as there may be, each of which is killed somewhere.
TEST_F(Replace, leaves_nothing_of_killed_writers_after_the_next) {
  const std::string name = folder_.write("a", "old");
  for (int round = 0; round < 20; ++round) {
    std::vector<pid_t> writers;
    for (std::uint32_t i = 0; i < numbered_names; ++i) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        for (;;) {
          auto replacement = Replacement::create(name);
          if (!replacement) ::_exit(1);
          const UniqueFd fd((*replacement)->open(O_RDWR));
          static_cast<void>((*replacement)->commit(fd.get(), false));
        }
      }
      writers.push_back(child);
    }
    ::usleep(2000 * static_cast<unsigned>(round % 5));
    for (const pid_t child : writers) ::kill(child, SIGKILL);
    for (const pid_t child : writers) {
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_TRUE(WIFSIGNALED(status)) << "a writer gave up";
    }
    ASSERT_TRUE(open(name)->writer()->commit(false).ok());
    EXPECT_EQ(folder_.file_count(), 1U) << "in round " << round;
  }
}

TEST_F(Replace, follows_links_and_leaves_them) {
  std::filesystem::create_directory(folder_.path("sub"));
  folder_.write("sub/target", "old");
  std::filesystem::create_symlink("sub/target", folder_.path("inner"));
  std::filesystem::create_symlink(folder_.path("inner"), folder_.path("outer"));
  auto store = open(folder_.path("outer"));
  put(*store, "new");
  ASSERT_TRUE(store->writer()->commit().ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("outer")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("inner")));
  EXPECT_EQ(folder_.read("sub/target"), "new");
}

TEST_F(Replace, gives_up_on_links_that_go_round) {
  std::filesystem::create_symlink("b", folder_.path("a"));
  std::filesystem::create_symlink("a", folder_.path("b"));
  EXPECT_FALSE(open_file(folder_.path("a"), {.access = Access::replace}).ok());
}

TEST_F(Replace, works_for_the_longest_names) {
  const std::string name(255, 'n');
  ASSERT_TRUE(open(folder_.path(name))->writer()->commit().ok());
  EXPECT_TRUE(std::filesystem::exists(folder_.path(name)));
}

}  // namespace
}  // namespace penstock::files
