#include "files/file_store.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/test_syncs.h"
#include "files/test_scratch.h"
#include "files/transfer.h"

namespace penstock::files {
namespace {

// As on kernels before 6.5, for the calling thread, from now on. False where that can't be done.
bool refuse_cachestat() {
  constexpr std::uint32_t cachestat_call = 451;
  std::array<sock_filter, 4> instructions = {{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                              BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, cachestat_call, 0, 1),
                                              BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                                              BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog program{instructions.size(), instructions.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

class AFileStore : public testing::Test {
 protected:
  std::unique_ptr<FileStore> open(const std::string& name, const OpenOptions& options = {}) {
    auto file = open_file(name, options);
    if (!file) {
      ADD_FAILURE() << file.error().message;
      return nullptr;
    }
    return std::make_unique<FileStore>(std::move(*file));
  }

  // As if a server were behind it.
  static std::unique_ptr<FileStore> open_served(const std::string& name) {
    auto file = open_file(name, {});
    if (!file) {
      ADD_FAILURE() << file.error().message;
      return nullptr;
    }
    file->info.locality = Locality::network;
    return std::make_unique<FileStore>(std::move(*file));
  }

  static constexpr std::uint64_t size_bytes = 1 << 20;
  ScratchFolder folder_;
};

ino_t inode_of(int fd) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

TEST_F(AFileStore, has_one_file_behind_both_descriptors_whatever_becomes_of_the_name) {
  const std::string name = folder_.write("a", "hello");
  const auto store = open(name);
  if (!store->info().direct) GTEST_SKIP() << "no direct transfers here";
  const auto other = open(name);
  std::filesystem::rename(folder_.write("b", "another"), name);
  const int direct = store->direct_fd();
  ASSERT_GE(direct, 0);
  EXPECT_EQ(inode_of(direct), inode_of(store->buffered_fd()));
  EXPECT_NE(::fcntl(direct, F_GETFL) & O_DIRECT, 0);
  EXPECT_EQ(store->direct_fd(), direct) << "it is opened once";
  bool has_no_proc = false;
  // Mounts are a thread's own, if it likes.
  std::thread([&] {
    has_no_proc = ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                  ::mount("none", "/proc", "tmpfs", 0, nullptr) == 0;
    if (!has_no_proc) return;
    EXPECT_LT(other->direct_fd(), 0) << "the name means another file now";
  }).join();
  if (!has_no_proc) GTEST_SKIP() << "the mounts of this process can't be changed";
}

TEST_F(AFileStore, is_opened_and_used_by_many_threads_at_once) {
  const std::string name = folder_.write("a", "hello");
  const auto shared = open(name);
  std::vector<std::thread> threads;
  std::array<int, 4> direct{};
  for (int& mine : direct) {
    threads.emplace_back([&] {
      mine = shared->direct_fd();
      for (int i = 0; i < 50; ++i) {
        const auto store = open(name, {.access = i % 2 == 0 ? Access::read : Access::write});
        EXPECT_EQ(store->info().identity, shared->info().identity);
        EXPECT_EQ(store->direct_fd() >= 0, store->info().direct);
        EXPECT_EQ(shared->page_cache()->resident_bytes(0, 5).has_value(),
                  store->page_cache()->resident_bytes(0, 5).has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int one : direct) EXPECT_EQ(one, direct.front()) << "it is opened once";
}

TEST_F(AFileStore, is_read_through_the_page_cache_where_the_second_descriptor_is_refused) {
  const std::string name = folder_.write("a", std::string(4096, 'x'));
  std::filesystem::permissions(name, std::filesystem::perms(0));
  if (::geteuid() != 0) GTEST_SKIP() << "only root can open it";
  const auto store = open(name);
  if (!store->info().direct) GTEST_SKIP() << "no direct transfers here";
  const AsNobody nobody;
  AlignedMemory memory(4096);
  engine::Op op{.store = store.get(), .length = 4096, .memory = memory.data()};
  op.path = engine::Path::direct;
  EXPECT_EQ(transfer(op).system_error, EINVAL) << "by which core goes another way";
  op.path = engine::Path::buffered;
  EXPECT_EQ(transfer(op).bytes, 4096U);
}

TEST_F(AFileStore, keeps_its_identity_while_nothing_happens) {
  const auto store = open(folder_.write("a", "hello"));
  EXPECT_EQ(store->state()->identity, store->info().identity);
}

TEST_F(AFileStore, changes_its_identity_with_its_content) {
  const auto store = open(folder_.write("a", "hello"));
  folder_.write("a", "hello, world");
  EXPECT_NE(store->state()->identity, store->info().identity);
  EXPECT_EQ(store->state()->size_bytes, 12U);
}

TEST_F(AFileStore, waits_as_soon_as_its_descriptor_is_handed_out) {
  const auto store = open(folder_.write("a", "hello"));
  const auto is_nonblocking = [&] { return (::fcntl(store->buffered_fd(), F_GETFL) & O_NONBLOCK) != 0; };
  EXPECT_EQ(is_nonblocking(), store->info().locality != Locality::network) << "opening leaves it as it is";
  store->make_waiting();
  EXPECT_FALSE(is_nonblocking());
  const auto other = open(folder_.path("a"));
  EXPECT_EQ(::fcntl(other->descriptor(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(AFileStore, knows_when_its_name_means_another_file) {
  const auto store = open(folder_.write("a", "hello"));
  std::filesystem::rename(folder_.write("b", "other"), folder_.path("a"));
  EXPECT_EQ(store->state().error().code, Code::changed);
  std::filesystem::remove(folder_.path("a"));
  EXPECT_EQ(store->state().error().code, Code::changed);
}

TEST_F(AFileStore, needs_no_name_where_it_was_opened_by_a_descriptor) {
  const auto first = open(folder_.write("a", "hello"));
  const auto store = open(folder_.path("a"), {.descriptor = first->descriptor()});
  std::filesystem::rename(folder_.path("a"), folder_.path("b"));
  EXPECT_EQ(store->state()->identity, first->info().identity);
  std::filesystem::remove(folder_.path("b"));
  EXPECT_EQ(store->state()->identity, first->info().identity);
  EXPECT_TRUE(store->page_cache()->resident_bytes(0, 5) == first->page_cache()->resident_bytes(0, 5));
}

TEST_F(AFileStore, is_found_again_after_the_process_changed_its_folder) {
  folder_.write("a", "hello");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  const auto store = open("a");
  std::filesystem::current_path(before);
  EXPECT_TRUE(store->state().ok());
}

TEST_F(AFileStore, has_a_writer_only_when_it_was_opened_for_writing) {
  const std::string name = folder_.write("a", "hello");
  EXPECT_EQ(open(name)->writer(), nullptr);
  const auto store = open(name, {.access = Access::write});
  ASSERT_NE(store->writer(), nullptr);
  EXPECT_EQ(store->writer()->edges(), engine::Writer::Edges::buffered);
  EXPECT_TRUE(store->writer()->reserve({0, 100}).ok());
  EXPECT_EQ(store->state()->size_bytes, 100U);
  EXPECT_TRUE(store->writer()->reserve({0, 3}).ok());
  EXPECT_EQ(store->state()->size_bytes, 100U);
  EXPECT_TRUE(store->writer()->commit().ok());
}

TEST_F(AFileStore, syncs_a_new_name_until_that_has_worked_and_not_again) {
  const std::string name = folder_.path("new");
  const auto store = open(name, {.access = Access::create});
  for (int i = 0; i < 2; ++i) {
    const auto failed = test::syncs_of([&] { EXPECT_FALSE(store->writer()->sync_name().ok()); }, folder_.path());
    EXPECT_EQ(failed, std::vector<std::string>{folder_.path() + "!"});
  }
  EXPECT_EQ(test::syncs_of([&] { EXPECT_TRUE(store->writer()->commit().ok()); }),
            (std::vector<std::string>{name, folder_.path()}));
  EXPECT_EQ(test::syncs_of([&] { EXPECT_TRUE(store->writer()->commit().ok()); }), std::vector<std::string>{name});
  EXPECT_EQ(test::syncs_of([&] { EXPECT_TRUE(store->writer()->commit(false).ok()); }), std::vector<std::string>());
}

TEST_F(AFileStore, syncs_the_folder_that_has_a_new_name_and_not_that_of_the_link_to_it) {
  for (const char* folder : {"links", "files"}) std::filesystem::create_directory(folder_.path(folder));
  std::filesystem::create_symlink("../files/new", folder_.path("links/link"));
  const auto store = open(folder_.path("links/link"), {.access = Access::create});
  EXPECT_EQ(test::syncs_of([&] { EXPECT_TRUE(store->writer()->sync_name().ok()); }),
            std::vector<std::string>{folder_.path("files")});
}

TEST_F(AFileStore, says_that_what_is_in_memory_does_not_last) {
  const ScratchFolder memory("/dev/shm");
  auto file = open_file(memory.path("a"), {.access = Access::create});
  ASSERT_TRUE(file.ok()) << file.error().message;
  if (file->info.locality != Locality::memory) GTEST_SKIP() << "/dev/shm is not in memory here";
  EXPECT_EQ(file->info.volatile_because, "tmpfs is memory");
  const auto here = open(folder_.path("a"), {.access = Access::create});
  EXPECT_EQ(here->info().volatile_because.empty(), here->info().locality != Locality::memory);
}

TEST_F(AFileStore, counts_a_cached_range_exactly_whatever_its_edges) {
  const auto store = open(folder_.write_pattern("a", size_bytes));
  engine::PageCache& cache = *store->page_cache();
  ASSERT_TRUE(cache.timed_read_seconds(0, 65536).has_value());
  for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{0, size_bytes},
                                       {1, size_bytes - 1},
                                       {4095, 2},
                                       {5000, 70000},
                                       {0, 0}}) {
    const auto resident = cache.resident_bytes(offset, length);
    if (!resident) GTEST_SKIP() << "the kernel does not report what is cached";
    EXPECT_EQ(*resident, length) << offset;
  }
}

TEST_F(AFileStore, drops_its_pages_and_brings_them_back) {
  const auto store = open(folder_.write_pattern("a", size_bytes));
  if (store->info().locality != Locality::local) GTEST_SKIP() << "files are in memory here";
  engine::PageCache& cache = *store->page_cache();
  cache.drop(0, size_bytes);
  const auto dropped = cache.resident_bytes(0, size_bytes);
  if (!dropped) GTEST_SKIP() << "the kernel does not report what is cached";
  if (*dropped != 0) GTEST_SKIP() << "the file system does not drop pages on request";
  EXPECT_EQ(cache.resident_bytes(4095, 2), 0U);
  ASSERT_TRUE(cache.prefetch(0, size_bytes).ok());
  EXPECT_TRUE(cache.timed_read_seconds(size_bytes - 4096, 4096).has_value());
  EXPECT_GT(*cache.resident_bytes(0, size_bytes), 0U);
  EXPECT_FALSE(cache.timed_read_seconds(size_bytes, 4096).has_value());
  EXPECT_EQ(cache.prefetch(UINT64_MAX, 2).error().code, Code::out_of_range);
}

TEST_F(AFileStore, in_memory_is_always_resident) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "no /dev/shm";
  const ScratchFolder shm("/dev/shm");
  EXPECT_EQ(open(shm.write("a", "hello"))->page_cache()->resident_bytes(1, 3), 3U);
}

TEST_F(AFileStore, of_somebody_else_is_not_lied_about) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  const std::string name = folder_.write_pattern("a", size_bytes);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  std::filesystem::permissions(name, std::filesystem::perms(0644));
  const AsNobody nobody;
  const auto store = open(name);
  if (store->info().locality != Locality::local) GTEST_SKIP() << "files are in memory here";
  store->page_cache()->drop(0, size_bytes);
  const auto resident = store->page_cache()->resident_bytes(0, size_bytes);
  EXPECT_TRUE(!resident || *resident < size_bytes);
}

TEST_F(AFileStore, asks_no_server_what_is_cached) {
  const std::string name = folder_.write_pattern("a", size_bytes);
  const auto local = open(name);
  const auto served = open_served(name);
  bool refused = false;
  std::thread([&] {
    refused = refuse_cachestat();
    if (!refused) return;
    EXPECT_TRUE(local->page_cache()->resident_bytes(0, size_bytes).has_value());
    EXPECT_FALSE(served->page_cache()->resident_bytes(0, size_bytes).has_value());
  }).join();
  if (!refused) GTEST_SKIP() << "no seccomp filter can be installed here";
}

TEST_F(AFileStore, of_somebody_else_is_not_asked_about_where_the_kernel_would_ask_a_server) {
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  const std::string name = folder_.write_pattern("a", size_bytes);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become somebody else";
  std::filesystem::permissions(name, std::filesystem::perms(0666));
  const AsNobody nobody;
  EXPECT_FALSE(open_served(name)->page_cache()->resident_bytes(0, size_bytes).has_value());
}

TEST_F(AFileStore, leaves_no_trace_of_having_asked_whose_it_is) {
  const auto store = open(folder_.write("a", "hello"));
  EXPECT_EQ(::fcntl(store->buffered_fd(), F_GETFL) & O_NOATIME, 0);
}

TEST_F(AFileStore, maps_what_it_holds) {
  const auto store = open(folder_.write_pattern("a", size_bytes + 5));
  const auto view = store->mapping()->map();
  ASSERT_TRUE(view.ok());
  ASSERT_EQ(view->bytes().size(), size_bytes + 5);
  EXPECT_TRUE(has_pattern(view->bytes().data(), 0, size_bytes + 5));
}

TEST_F(AFileStore, that_is_empty_has_an_empty_view) {
  const auto view = open(folder_.write("a", ""))->mapping()->map();
  ASSERT_TRUE(view.ok());
  EXPECT_TRUE(view->bytes().empty());
  EXPECT_TRUE(view->copy_to(0, Region::host(nullptr, 0)).ok());
}

}  // namespace
}  // namespace penstock::files
