#include "files/read_team.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "files/residency.h"
#include "files/test_scratch.h"

namespace penstock::files {
namespace {

class ReadTeamTest : public testing::Test {
 protected:
  static constexpr std::uint64_t size_bytes = 3 << 20;

  engine::Op op(std::uint64_t offset, std::vector<std::byte>& memory) {
    return {.path = engine::Path::cached,
            .store = &store_,
            .offset = offset,
            .length = memory.size(),
            .memory = memory.data(),
            .cookie = 9,
            .is_shared = true};
  }

  engine::Done read(ReadTeam& team, const engine::Op& what) {
    TeamRead read(what);
    ReadTeam::Slot* const slot = team.begin(read);
    while (team.work(read)) {
    }
    while (!read.is_over()) std::this_thread::yield();
    if (slot != nullptr) ReadTeam::end(*slot);
    return read.done();
  }

  const ScratchFolder folder_;
  const std::string path_ = folder_.write_pattern("a", size_bytes);
  FileStore store_{open_file(path_, {}).value()};
  ReadTeam team_{3};
};

TEST_F(ReadTeamTest, ReadsEveryByteToItsPlace) {
  for (const std::uint64_t length : {1U, 4095U, 32U << 10, (32U << 10) + 1, 1U << 20, 3'000'000U}) {
    std::vector<std::byte> memory(length);
    const engine::Done done = read(team_, op(77, memory));
    ASSERT_EQ(done.code, Code::ok) << length;
    EXPECT_EQ(done.bytes, length);
    EXPECT_EQ(done.cookie, 9U);
    EXPECT_EQ(done.route, Route::cached);
    EXPECT_TRUE(has_pattern(memory.data(), 77, length)) << length;
  }
}

TEST_F(ReadTeamTest, ServesCallersAtTheSameTime) {
  std::vector<std::jthread> callers;
  for (std::uint64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this, caller] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        std::vector<std::byte> memory(1 + (i * 7919 + caller * 104729) % (1 << 20));
        const std::uint64_t offset = (i * 4099 + caller) % (1 << 20);
        const engine::Done done = read(team_, op(offset, memory));
        ASSERT_EQ(done.bytes, memory.size());
        ASSERT_TRUE(has_pattern(memory.data(), offset, memory.size()));
      }
    });
  }
}

TEST_F(ReadTeamTest, EndsShortAtTheEndOfTheFile) {
  std::vector<std::byte> memory(1 << 20);
  const engine::Done done = read(team_, op(size_bytes - (500 << 10), memory));
  EXPECT_EQ(done.code, Code::ok);
  EXPECT_EQ(done.bytes, 500U << 10);
  EXPECT_TRUE(has_pattern(memory.data(), size_bytes - (500 << 10), 500 << 10));
  EXPECT_EQ(read(team_, op(size_bytes, memory)).bytes, 0U);
}

TEST_F(ReadTeamTest, WithoutHelpersTheCallerReadsAll) {
  ReadTeam alone(0);
  std::vector<std::byte> memory(1 << 20);
  EXPECT_EQ(read(alone, op(5, memory)).bytes, memory.size());
  EXPECT_TRUE(has_pattern(memory.data(), 5, memory.size()));
}

TEST_F(ReadTeamTest, CancelledEndsWithoutBytes) {
  std::vector<std::byte> memory(1 << 20);
  TeamRead read(op(0, memory));
  read.cancel();
  EXPECT_TRUE(read.is_over());
  EXPECT_FALSE(team_.work(read));
  EXPECT_EQ(read.done().code, Code::cancelled);
}

TEST_F(ReadTeamTest, LeavesWhatIsNotCachedOnTheDisk) {
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd);
  if (!resident_by_reading(fd.get(), 0)) GTEST_SKIP() << "the file system does not know RWF_NOWAIT";
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM), 0);
  ASSERT_EQ(::fdatasync(fd.get()), 0);
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  if (resident_by_mincore(fd.get(), {0, size_bytes}) != 0U) GTEST_SKIP() << "the file system keeps it in memory";
  std::vector<std::byte> memory(1 << 20);
  ASSERT_EQ(::pread(fd.get(), memory.data(), memory.size(), 0), static_cast<ssize_t>(memory.size()));
  const engine::Done none = read(team_, op(2 << 20, memory));
  EXPECT_EQ(none.bytes, 0U);
  EXPECT_EQ(none.system_error, EAGAIN);
  const engine::Done half = read(team_, op(512 << 10, memory));
  EXPECT_EQ(half.code, Code::ok);
  // What was asked for before may have come in meanwhile.
  EXPECT_GE(half.bytes, 512U << 10);
  EXPECT_TRUE(has_pattern(memory.data(), 512 << 10, half.bytes));
}

}  // namespace
}  // namespace penstock::files
