#include "services/rows/residency.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "penstock/context.h"

namespace penstock::rows {
namespace {

constexpr std::uint64_t mebibyte = 1 << 20;

// A file of 5 MiB of which 3 are in the page cache.
class PartlyCached : public testing::Test {
 protected:
  void SetUp() override {
    fd_ = ::mkstemp(path_.data());
    ASSERT_GE(fd_, 0);
    const std::vector<char> bytes(size_bytes, 'x');
    ASSERT_EQ(::pwrite(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    ::fsync(fd_);
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
    read(0, 3 * mebibyte);
    store_ = context_.open(path_).value();
    if (store_.cached_bytes(0, 3 * mebibyte) != 3 * mebibyte || store_.cached_bytes(4 * mebibyte, mebibyte) != 0U) {
      GTEST_SKIP() << "the page cache has other plans here";
    }
    view_ = store_.view().value();
  }
  ~PartlyCached() override {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  void read(std::uint64_t offset, std::uint64_t length) const {
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);  // nothing is read ahead
    std::vector<char> bytes(length);
    EXPECT_EQ(::pread(fd_, bytes.data(), length, static_cast<off_t>(offset)), static_cast<ssize_t>(length));
  }
  Residency make(double look_again_seconds) const {
    return Residency(store_, view_.bytes(), {first, size_bytes - first}, {.look_again_seconds = look_again_seconds});
  }

  static constexpr std::uint64_t size_bytes = 5 * mebibyte;
  static constexpr std::uint64_t first = 5000;  // where the table begins, within a page
  std::string path_ = (std::filesystem::temp_directory_path() / "penstock-residency-XXXXXX").string();
  int fd_ = -1;
  Context context_ = Context::create({}).value();
  Store store_;
  View view_;
};

TEST_F(PartlyCached, pages_that_are_there_are_told_from_others_which_stay_away) {
  Residency residency = make(1000);
  EXPECT_FALSE(residency.is_whole());
  residency.look();
  {
    const auto held = residency.hold();
    EXPECT_TRUE(residency.has(first, 1));
    EXPECT_TRUE(residency.has(first, 2 * mebibyte));
    EXPECT_TRUE(residency.has(3 * mebibyte - 100, 100)) << "in a stretch that is partly there";
    EXPECT_FALSE(residency.has(4 * mebibyte, 1));
    EXPECT_FALSE(residency.has(3 * mebibyte - 100, mebibyte));
  }
  EXPECT_FALSE(residency.is_whole());
  EXPECT_EQ(store_.cached_bytes(4 * mebibyte, mebibyte), 0U) << "looking reads nothing";
}

TEST_F(PartlyCached, what_was_seen_is_believed_until_it_is_forgotten) {
  Residency residency = make(1000);
  residency.look();
  read(0, size_bytes);
  residency.look();
  EXPECT_FALSE(residency.is_whole());
  residency.forget();
  residency.look();
  EXPECT_TRUE(residency.is_whole());
}

TEST_F(PartlyCached, looking_ends_when_it_is_not_wanted_any_more_and_begins_again_the_next_time) {
  Residency residency = make(1000);
  const auto has = [&](std::uint64_t offset) {
    const auto held = residency.hold();
    return residency.has(offset, 1);
  };
  residency.look([] { return false; });
  EXPECT_FALSE(has(first));
  int asked = 0;
  residency.look([&] {
    residency.look();  // who is asked may look too
    return ++asked == 0;
  });
  EXPECT_EQ(asked, 1);
  EXPECT_TRUE(has(first));
  EXPECT_TRUE(has(3 * mebibyte - 100));
}

TEST_F(PartlyCached, only_the_stretches_that_are_named_are_looked_at) {
  Residency residency = make(0);
  ASSERT_EQ(residency.stretches(), 3U);
  const std::vector<std::size_t> named = {residency.stretch_of(2 * mebibyte + 8192)};
  EXPECT_EQ(named.front(), 1U);
  residency.look(named);
  const auto held = residency.hold();
  EXPECT_FALSE(residency.has(first, 1));
  EXPECT_TRUE(residency.has(3 * mebibyte - 100, 100));
}

}  // namespace
}  // namespace penstock::rows
