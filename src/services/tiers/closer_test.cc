#include "services/tiers/closer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <string>
#include <thread>
#include <utility>

#include "services/tiers/mover.h"
#include "services/tiers/test_tiers.h"

namespace penstock::tiers {
namespace {

using namespace test;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Whether the other end is closed.
bool is_closed(const UniqueFd& read) {
  char byte = 0;
  return ::read(read.get(), &byte, 1) == 0;
}

std::vector<UniqueFd> alone(UniqueFd file) {
  std::vector<UniqueFd> files;
  files.push_back(std::move(file));
  return files;
}

// A socket whose close waits until the other has read all of it, or for `most_seconds`.
struct Slow {
  UniqueFd file;
  UniqueFd other;

  explicit Slow(int most_seconds) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    file = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(file.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    other = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::string bytes(1 << 20, 'x');
    while (::send(file.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
    const linger until_read{.l_onoff = 1, .l_linger = most_seconds};
    EXPECT_EQ(::setsockopt(file.get(), SOL_SOCKET, SO_LINGER, &until_read, sizeof until_read), 0);
  }

  void read_all() const {
    std::string bytes(1 << 20, '\0');
    while (::read(other.get(), bytes.data(), bytes.size()) > 0) {
    }
  }
};

TEST(Closer, closes_what_it_was_given) {
  Closer closer;
  EXPECT_FALSE(closer.finish());
  Pipe pipe = make_pipe();
  closer.take(alone(std::move(pipe.write)));
  closer.finish();
  EXPECT_TRUE(is_closed(pipe.read));
  EXPECT_FALSE(closer.finish());
}

TEST(Closer, its_end_waits_until_all_is_closed) {
  Pipe pipe = make_pipe();
  {
    Closer closer;
    closer.take(alone(std::move(pipe.write)));
  }
  EXPECT_TRUE(is_closed(pipe.read));
}

TEST(Closer, does_not_let_who_gives_files_wait_for_a_slow_one) {
  Closer closer;
  Slow slow(60);
  closer.take(alone(std::move(slow.file)));
  Pipe pipe = make_pipe();
  closer.take(alone(std::move(pipe.write)));  // returns
  std::thread reader([&] { slow.read_all(); });
  EXPECT_TRUE(closer.finish());
  EXPECT_TRUE(is_closed(pipe.read));
  reader.join();
}

TEST(Closer, takes_more_files_than_may_be_open_once_the_others_are_closed) {
  Closer closer;
  std::vector<UniqueFd> ends;
  for (int i = 0; i < 3; ++i) {
    std::vector<UniqueFd> files;
    struct rlimit limit = {};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const std::size_t count = std::min<rlim_t>(limit.rlim_cur / 8, 512) + 1;
    Pipe pipe = make_pipe();
    for (std::size_t file = 0; file < count; ++file) files.emplace_back(::dup(pipe.write.get()));
    pipe.write = UniqueFd();
    ends.push_back(std::move(pipe.read));
    closer.take(std::move(files));
  }
  closer.finish();
  for (const UniqueFd& end : ends) EXPECT_TRUE(is_closed(end));
}

// In a process of its own, with a file system of 8 MiB for a tier: 0 if all is well, 77 if it may not mount one.
int move_to_room_that_is_being_freed() {
  if (::unshare(::geteuid() == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
  const Folders folders;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return 77;
  if (::mount("tmpfs", folders.path("hdd").c_str(), "tmpfs", 0, "size=8m") != 0) return 77;
  int failed = 1;
  {
    Tiers tiers = folders.create();
    write_file(folders.path("nvme/file"), bytes_of("file", 1, 6 << 20));
    write_file(folders.path("hdd/old"), bytes_of("old", 1, 6 << 20));
    auto catalog = Catalog::open(folders.catalog(), 10);
    auto context = Context::create({.cache = Cache::bypass, .lanes = 1});
    const bool is_ready = tiers.import("file").ok() && catalog.ok() && context.ok();
    const std::string old = folders.path("hdd/old").string();
    UniqueFd source(::open(old.c_str(), O_RDONLY | O_CLOEXEC));
    ::unlink(old.c_str());
    Closer closer;
    Slow slow(60);
    closer.take(alone(std::move(slow.file)));
    closer.take(alone(std::move(source)));  // waits behind the other
    std::thread reader([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      slow.read_all();
    });
    if (is_ready) {
      const auto mover = Mover::create(**catalog, *context, closer, {});
      const auto unit = (*catalog)->unit("file");
      const auto places = (*catalog)->tiers();
      const Task task{.unit = (*unit)->id, .name = "file", .to = places->back().id, .size_bytes = 6 << 20};
      const MoveReport report = (*mover)->move({&task, 1});
      for (const auto& failure : report.failures) std::fprintf(stderr, "%s\n", failure.error.message.c_str());
      failed = report.units == 1 && folders.where("file") == std::vector<std::string>{"hdd"} ? 0 : 1;
    }
    reader.join();
  }
  ::umount2(folders.path("hdd").c_str(), MNT_DETACH);
  return failed;
}

TEST(Closer, a_move_waits_for_the_room_of_a_deleted_source) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(move_to_room_that_is_being_freed());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "a file system can't be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace penstock::tiers
