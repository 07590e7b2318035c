#include "files/open.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "files/file_status.h"
#include "files/test_scratch.h"

namespace {

// Longer calls of fallocate are interrupted, as on tmpfs, which undoes what they did; 0: none is.
std::atomic<off_t> longest_between_signals = 0;
// What happens instead of a call that finds no space.
std::function<void()> where_space_is_missing;

}  // namespace

extern "C" int fallocate(int fd, int mode, off_t offset, off_t length) {
  if (where_space_is_missing) {
    where_space_is_missing();
    errno = ENOSPC;
    return -1;
  }
  const off_t longest = longest_between_signals;
  if (longest == 0 || length <= longest) {
    return static_cast<int>(::syscall(SYS_fallocate, fd, mode, offset, length));
  }
  errno = EINTR;
  return -1;
}

namespace penstock::files {
namespace {

class OpenFile : public testing::Test {
 protected:
  ScratchFolder folder_;
};

TEST_F(OpenFile, tells_what_it_found) {
  const std::string name = folder_.write("a", "hello");
  const auto file = open_file(name, {});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->info.name, name);
  EXPECT_EQ(file->info.kind, StoreKind::file);
  EXPECT_EQ(file->info.size_bytes, 5U);
  EXPECT_EQ(file->info.block_bytes, 512U);
  EXPECT_FALSE(file->info.file_system.empty());
  EXPECT_FALSE(file->info.writable);
  EXPECT_TRUE(file->info.page_cache);
  EXPECT_NE(file->info.identity.text().find("modified at "), std::string::npos) << file->info.identity.text();
  EXPECT_EQ(file->info.identity.bytes().size(), file->info.identity.text().size());
  EXPECT_EQ(Identity::of_file(file->buffered.get()).value(), file->info.identity);
  EXPECT_EQ((::fcntl(file->buffered.get(), F_GETFL) & O_NONBLOCK) != 0, file->is_nonblocking);
  EXPECT_NE(::fcntl(file->buffered.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(OpenFile, has_a_direct_descriptor_exactly_where_it_says_so) {
  const auto file = open_file(folder_.write("a", "hello"), {});
  ASSERT_TRUE(file.ok());
  const UniqueFd direct = open_direct(file->buffered.get(), file->path, file->info.writable);
  EXPECT_EQ(file->info.direct, static_cast<bool>(direct));
  if (!file->info.direct) GTEST_SKIP() << "no direct transfers on " << file->info.file_system;
  EXPECT_GE(file->info.alignments.offset, 4096U);
  EXPECT_GE(file->info.alignments.memory, 4U);
  EXPECT_NE(::fcntl(direct.get(), F_GETFL) & O_DIRECT, 0);
  EXPECT_EQ(::fcntl(direct.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(::fcntl(direct.get(), F_GETFD) & FD_CLOEXEC, 0);
}

// Read system calls of this thread so far, with those of asking; nothing where the kernel does not count them.
std::optional<std::uint64_t> reads_so_far() {
  std::ifstream counts("/proc/thread-self/io");
  std::uint64_t reads = 0;
  for (std::string name; counts >> name;) {
    if (name == "syscr:" && counts >> reads) return reads;
  }
  return std::nullopt;
}

TEST_F(OpenFile, looks_up_what_belongs_to_a_mount_once) {
  const std::string name = folder_.write("a", "hello");
  const auto opens = [&](Access access) {
    const auto now = open_file_now(name, {.access = access});
    return now ? now->ok() : open_file(name, {.access = access}).ok();
  };
  const auto reads_of_opening = [&](Access access) -> std::uint64_t {
    EXPECT_TRUE(opens(access));
    const std::uint64_t begin = *reads_so_far();
    const std::uint64_t asking = *reads_so_far() - begin;
    const std::uint64_t before = *reads_so_far();
    EXPECT_TRUE(opens(access));
    return *reads_so_far() - before - asking;
  };
  if (!reads_so_far()) GTEST_SKIP() << "the kernel does not count system calls";
  const auto file = open_file(name, {});
  const auto status = files::status_of(file->buffered.get());
  if (!status || !status->mount) GTEST_SKIP() << "the kernel does not tell mounts";
  EXPECT_EQ(reads_of_opening(Access::read), 0U);
  const auto lists_loop_devices = [] {
    std::stringstream text;
    text << std::ifstream("/proc/partitions").rdbuf();
    return text.str().empty() || text.str().find(" loop") != std::string::npos;
  };
  const bool before = lists_loop_devices();
  const std::uint64_t reads = reads_of_opening(Access::write);
  if (before || lists_loop_devices()) GTEST_SKIP() << "files are in use by loop devices, maybe of another test";
  EXPECT_LE(reads, 4U) << "swaps and partitions";
}

TEST_F(OpenFile, at_once_does_the_same_where_nothing_waits) {
  const std::string name = folder_.write("a", "hello");
  const auto now = open_file_now(name, {});
  if (!now) GTEST_SKIP() << "the kernel does not tell, or the files are a server's";
  ASSERT_TRUE(now->ok());
  const auto file = open_file(name, {});
  EXPECT_EQ((*now)->info.identity, file->info.identity);
  EXPECT_EQ((*now)->info.direct, file->info.direct);
  EXPECT_EQ((*now)->info.alignments.memory, file->info.alignments.memory);
  ASSERT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  for (const char* other : {"none", "pipe", ""}) {
    for (const Access access : {Access::read, Access::write, Access::replace}) {
      const auto expected = open_file(folder_.path(other), {.access = access});
      const auto found = open_file_now(folder_.path(other), {.access = access});
      if (!found) continue;
      EXPECT_EQ(found->ok() ? Code::ok : found->error().code, expected ? Code::ok : expected.error().code);
    }
  }
}

TEST_F(OpenFile, knows_files_in_memory) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const ScratchFolder shm("/dev/shm");
  const auto file = open_file(shm.write("a", "hello"), {});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->info.locality, Locality::memory);
  EXPECT_EQ(file->info.file_system, "tmpfs");
  EXPECT_FALSE(file->info.direct);
}

TEST_F(OpenFile, refuses_what_is_not_there) {
  const auto file = open_file(folder_.path("none"), {});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::not_found);
  EXPECT_FALSE(file.error().hint.empty());
  EXPECT_EQ(open_file(folder_.path("none"), {.access = Access::write}).error().code, Code::not_found);
  EXPECT_EQ(open_file(folder_.path("none/x"), {.access = Access::create}).error().code, Code::not_found);
  EXPECT_EQ(open_file("", {}).error().code, Code::not_found);
}

TEST_F(OpenFile, refuses_directories) {
  for (const Access access : {Access::read, Access::write, Access::create, Access::replace}) {
    EXPECT_EQ(open_file(folder_.path(), {.access = access}).error().code, Code::is_directory);
  }
}

TEST_F(OpenFile, refuses_a_pipe_without_waiting_for_its_other_end) {
  ASSERT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  for (const Access access : {Access::read, Access::write, Access::create, Access::replace}) {
    const auto file = open_file(folder_.path("pipe"), {.access = access});
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, Code::unsupported);
  }
}

TEST_F(OpenFile, refuses_character_devices) {
  for (const Access access : {Access::read, Access::write, Access::create, Access::replace}) {
    const auto file = open_file("/dev/null", {.access = access});
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.error().code, Code::unsupported);
    EXPECT_NE(file.error().message.find("null device"), std::string::npos) << file.error().message;
    EXPECT_FALSE(file.error().hint.empty());
  }
}

TEST_F(OpenFile, refuses_files_whose_size_is_not_their_length) {
  for (const char* name : {"/proc/self/status", "/sys/kernel/uevent_seqnum"}) {
    if (!std::filesystem::exists(name)) GTEST_SKIP() << "there is no " << name;
    for (const Access access : {Access::read, Access::write}) {
      const auto file = open_file(name, {.access = access});
      ASSERT_FALSE(file.ok()) << name;
      if (access == Access::write && file.error().code == Code::permission_denied) continue;
      EXPECT_EQ(file.error().code, Code::unsupported) << file.error().message;
      EXPECT_NE(file.error().hint.find("cat"), std::string::npos) << file.error().hint;
    }
  }
}

TEST_F(OpenFile, takes_empty_and_sparse_files_at_their_word) {
  for (const Access access : {Access::read, Access::write, Access::create}) {
    EXPECT_TRUE(open_file(folder_.write("empty", ""), {.access = access}).ok());
  }
  std::filesystem::resize_file(folder_.write("sparse", ""), 1 << 20);
  const auto sparse = open_file(folder_.path("sparse"), {});
  ASSERT_TRUE(sparse.ok());
  EXPECT_EQ(sparse->info.size_bytes, 1U << 20);
}

TEST_F(OpenFile, refuses_names_with_a_zero_byte) {
  EXPECT_EQ(open_file(folder_.write("a", "x") + std::string("\0b", 2), {}).error().code, Code::invalid_argument);
}

TEST_F(OpenFile, says_who_may_not_read_or_write) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  const std::string secret = folder_.write("secret", "x");
  const std::string fixed = folder_.write("fixed", "x");
  std::filesystem::permissions(secret, std::filesystem::perms(0));
  std::filesystem::permissions(fixed, std::filesystem::perms(0444));
  const AsNobody nobody;
  for (const auto& file : {open_file(secret, {}).error(), open_file(fixed, {.access = Access::write}).error(),
                           open_file(fixed, {.access = Access::replace}).error()}) {
    EXPECT_EQ(file.code, Code::permission_denied) << file.message;
    EXPECT_FALSE(file.hint.empty());
  }
  EXPECT_TRUE(open_file(fixed, {}).ok());
}

TEST_F(OpenFile, makes_room_though_signals_interrupt_it) {
  longest_between_signals = 1 << 20;
  const auto file = open_file(folder_.path("a"), {.access = Access::create, .size_bytes = 20'000'001});
  longest_between_signals = 0;
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->info.size_bytes, 20'000'001U);
}

// Its folder may be another user's, who exchanges it for a link just then.
TEST_F(OpenFile, removes_a_new_file_without_room_from_the_folder_that_has_it_or_not_at_all) {
  const std::string his = folder_.path("his");
  for (const bool is_exchanged : {false, true}) {
    for (const char* folder : {"his", "mine"}) std::filesystem::create_directory(folder_.path(folder));
    folder_.write("mine/a", "mine");
    int calls = 0;
    where_space_is_missing = [&] {
      if (++calls != 1 || !is_exchanged) return;
      std::filesystem::rename(his, his + ".old");
      std::filesystem::create_directory_symlink("mine", his);
    };
    const auto refused = open_file(his + "/a", {.access = Access::create, .size_bytes = 100});
    where_space_is_missing = {};
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::no_space);
    EXPECT_GT(calls, 0);
    EXPECT_EQ(folder_.read("mine/a"), "mine");
    EXPECT_EQ(std::filesystem::exists(his + "/a"), is_exchanged);
  }
}

TEST_F(OpenFile, opens_what_a_descriptor_means_under_the_name_that_is_given) {
  const std::string name = folder_.write("a", "hello");
  const auto before = open_file(name, {});
  ASSERT_TRUE(before.ok());
  const auto open_again = [&] { return open_file(name, {.descriptor = before->buffered.get()}); };
  const auto is_the_same = [&] {
    const auto again = open_again();
    return again.ok() && again->info.identity == before->info.identity && again->info.name == name &&
           again->info.direct == before->info.direct;
  };
  EXPECT_TRUE(is_the_same());
  std::filesystem::rename(folder_.write("b", "another"), name);
  EXPECT_TRUE(is_the_same());
  std::filesystem::remove(name);
  EXPECT_TRUE(is_the_same());
  EXPECT_NE(::fcntl(open_again()->buffered.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(OpenFile, says_so_of_a_descriptor_that_is_not_open) {
  constexpr int nobodys = 1'000'000;
  const auto file = open_file(folder_.write("a", "hello"), {.descriptor = nobodys});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::invalid_argument);
  EXPECT_EQ(file.error().system_error, EBADF);
}

TEST_F(OpenFile, tells_why_a_descriptor_cant_be_opened_again) {
  const std::string name = folder_.write("a", "hello");
  const auto before = open_file(name, {});
  std::filesystem::permissions(name, std::filesystem::perms(0));
  std::filesystem::remove(name);
  const auto number_now = [&] {
    const auto again = open_file(name, {.descriptor = before->buffered.get()});
    return again ? 0 : again.error().system_error;
  };
  {
    const AsNobody nobody;
    EXPECT_EQ(number_now(), EACCES);
  }
  struct rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const struct rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(number_now(), EMFILE);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST_F(OpenFile, without_a_proc_the_name_must_mean_the_same_file) {
  const std::string name = folder_.write("a", "hello");
  const auto before = open_file(name, {});
  const auto reopen = [&](const std::string& as) { return open_file(as, {.descriptor = before->buffered.get()}); };
  bool has_no_proc = false;
  // Mounts are a thread's own, if it likes.
  std::thread([&] {
    has_no_proc = ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                  ::mount("none", "/proc", "tmpfs", 0, nullptr) == 0;
    if (!has_no_proc) return;
    EXPECT_TRUE(reopen(name).ok());
    EXPECT_EQ(reopen(folder_.write("b", "other")).error().code, Code::changed);
    EXPECT_EQ(reopen(folder_.path("none")).error().code, Code::not_found);
  }).join();
  if (!has_no_proc) GTEST_SKIP() << "the mounts of this process can't be changed";
}

TEST_F(OpenFile, creates_and_reserves) {
  const auto file = open_file(folder_.path("new"), {.access = Access::create, .size_bytes = 1 << 20});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->info.size_bytes, 1U << 20);
  EXPECT_TRUE(file->info.writable);
  struct stat status = {};
  ASSERT_EQ(::fstat(file->buffered.get(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, 1 << 20);
}

TEST_F(OpenFile, creating_keeps_what_is_there) {
  const auto file = open_file(folder_.write("old", "content"), {.access = Access::create, .size_bytes = 3});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->info.size_bytes, 7U);
  EXPECT_EQ(folder_.read("old"), "content");
}

TEST_F(OpenFile, creating_without_room_leaves_nothing_behind) {
  const auto file = open_file(folder_.path("huge"), {.access = Access::create, .size_bytes = std::uint64_t{1} << 62});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, Code::no_space);
  EXPECT_FALSE(file.error().hint.empty());
  EXPECT_FALSE(std::filesystem::exists(folder_.path("huge")));
  EXPECT_EQ(open_file(folder_.path("huge"), {.access = Access::create, .size_bytes = UINT64_MAX}).error().code,
            Code::no_space);
}

TEST_F(OpenFile, creating_follows_a_link_that_points_nowhere_yet) {
  std::filesystem::create_symlink(folder_.path("target"), folder_.path("link"));
  ASSERT_TRUE(open_file(folder_.path("link"), {.access = Access::create}).ok());
  EXPECT_TRUE(std::filesystem::is_regular_file(folder_.path("target")));
  EXPECT_TRUE(std::filesystem::is_symlink(folder_.path("link")));
}

TEST(ReserveSpace, restores_the_size_when_there_is_no_room) {
  const ScratchFolder folder;
  const auto file = open_file(folder.write("a", "content"), {.access = Access::write});
  ASSERT_TRUE(file.ok());
  const Status status = reserve_space(file->buffered.get(), "a", {0, std::uint64_t{1} << 43});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::no_space);
  EXPECT_EQ(folder.read("a"), "content");
}

std::uint64_t allocated_bytes(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

TEST(ReserveSpace, reserves_what_is_written_and_not_what_lies_before) {
  const ScratchFolder folder;
  const auto file = open_file(folder.write("a", "content"), {.access = Access::write});
  ASSERT_TRUE(file.ok());
  constexpr std::uint64_t mib = 1 << 20;
  ASSERT_TRUE(reserve_space(file->buffered.get(), "a", {64 * mib, 65 * mib}).ok());
  EXPECT_EQ(state_of(file->buffered.get(), "a")->size_bytes, 65 * mib);
  EXPECT_GE(allocated_bytes(file->buffered.get()), mib);
  EXPECT_LT(allocated_bytes(file->buffered.get()), 4 * mib);
}

TEST(ReserveSpace, needs_space_only_for_what_is_written) {
  const ScratchFolder folder;
  const auto file = open_file(folder.path("a"), {.access = Access::create});
  ASSERT_TRUE(file.ok());
  constexpr std::uint64_t far = std::uint64_t{1} << 42;  // more than the disk has, and less than files may
  const Status status = reserve_space(file->buffered.get(), "a", {far, far + 4096});
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_LT(allocated_bytes(file->buffered.get()), 1U << 20);
}

TEST_F(OpenFile, creates_a_hole_up_to_where_room_is_reserved) {
  for (const Access access : {Access::create, Access::replace}) {
    const auto file =
        open_file(folder_.path("sparse"), {.access = access, .size_bytes = 1 << 24, .reserve_from = 1 << 24});
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->info.size_bytes, 1U << 24);
    EXPECT_LT(allocated_bytes(file->buffered.get()), 1U << 20);
    std::filesystem::remove(folder_.path("sparse"));
  }
}

TEST(ReserveSpace, answers_a_limit_of_the_process_with_an_error_and_not_a_signal) {
  const ScratchFolder folder;
  const auto file = open_file(folder.path("a"), {.access = Access::create});
  ASSERT_TRUE(file.ok());
  struct rlimit old = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const struct rlimit low = {1 << 20, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const Status status = reserve_space(file->buffered.get(), "a", {0, 2 << 20});
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(status.error().code, Code::no_space);
}

}  // namespace
}  // namespace penstock::files
