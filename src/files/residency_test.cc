#include "files/residency.h"

#include <fcntl.h>
#include <gtest/gtest.h>

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

TEST(Residency, is_unknown_for_ranges_that_no_file_has) {
  EXPECT_FALSE(resident_by_mincore(0, {UINT64_MAX, 2}).has_value());
  EXPECT_FALSE(resident_by_cachestat(0, {UINT64_MAX, 2}).has_value());
  EXPECT_FALSE(resident_by_cachestat(-1, {0, 1}).has_value());
}

}  // namespace
}  // namespace penstock::files
