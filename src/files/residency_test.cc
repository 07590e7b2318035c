#include "files/residency.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "files/test_scratch.h"

namespace penstock::files {
namespace {

TEST(BytesFromPages, gives_the_whole_range_only_if_every_page_is_there) {
  EXPECT_EQ(bytes_from_pages(200, 2, 2), 200U);
  EXPECT_EQ(bytes_from_pages(200, 1, 2), 100U);
  EXPECT_EQ(bytes_from_pages(8192, 0, 2), 0U);
  EXPECT_EQ(bytes_from_pages(8191, 1, 3), 2730U);
  EXPECT_EQ(bytes_from_pages(UINT64_MAX, 1, 2), UINT64_MAX / 2);
}

TEST(Residency, is_the_same_by_cachestat_and_by_mincore) {
  const ScratchFolder folder;
  const UniqueFd fd(::open(folder.write_pattern("a", 3 << 20).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd);
  for (const ByteRange range :
       {ByteRange{0, 3 << 20}, ByteRange{4095, 2}, ByteRange{12345, 1 << 20}, ByteRange{7, 0}}) {
    const auto by_mincore = resident_by_mincore(fd.get(), range);
    ASSERT_TRUE(by_mincore.has_value());
    EXPECT_EQ(*by_mincore, range.length);
    const auto by_cachestat = resident_by_cachestat(fd.get(), range);
    if (!by_cachestat) GTEST_SKIP() << "the kernel has no cachestat";
    EXPECT_EQ(*by_cachestat, *by_mincore);
  }
}

TEST(Residency, of_a_page_is_told_by_reading_a_byte_of_it) {
  const ScratchFolder folder;
  const UniqueFd fd(::open(folder.write_pattern("a", 1 << 20).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(fd);
  const auto there = resident_by_reading(fd.get(), 12345);
  if (!there) GTEST_SKIP() << "the file system does not know RWF_NOWAIT";
  EXPECT_TRUE(*there) << "it has just been written";
  EXPECT_FALSE(resident_by_reading(fd.get(), 1 << 20).has_value()) << "past the end";
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_RANDOM), 0);
  ASSERT_EQ(::fdatasync(fd.get()), 0);
  // The look makes the kernel read the page, which may be there before the call returns.
  std::optional<bool> is_there = true;
  for (int i = 0; i < 1000 && is_there == true; ++i) {
    ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
    if (resident_by_mincore(fd.get(), {0, 1 << 20}) != 0U) GTEST_SKIP() << "the file system keeps it in memory";
    is_there = resident_by_reading(fd.get(), 12345);
  }
  EXPECT_EQ(is_there, false);
  EXPECT_LE(resident_by_mincore(fd.get(), {0, 1 << 20}).value(), 64U << 10) << "a page, and nothing ahead of it";
}

TEST(Residency, is_unknown_for_ranges_that_no_file_has) {
  EXPECT_FALSE(resident_by_mincore(0, {UINT64_MAX, 2}).has_value());
  EXPECT_FALSE(resident_by_cachestat(0, {UINT64_MAX, 2}).has_value());
  EXPECT_FALSE(resident_by_cachestat(-1, {0, 1}).has_value());
}

}  // namespace
}  // namespace penstock::files
