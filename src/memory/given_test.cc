#include "memory/given.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace penstock::memory {
namespace {

int make_memfd(off_t size) {
  const int fd = ::memfd_create("given", MFD_CLOEXEC);
  EXPECT_EQ(::ftruncate(fd, size), 0);
  return fd;
}

TEST(Given, parts_do_not_overlap_and_come_back) {
  const int fd = make_memfd(64 << 10);
  const auto given = Given::map(fd).value();
  auto first = given->take(16 << 10).value();
  auto second = given->take(10'000).value();
  auto third = given->take(32 << 10).value();
  EXPECT_GE(second->region().data, first->region().data + (16 << 10));
  EXPECT_GE(third->region().data, second->region().data + 10'000);
  EXPECT_EQ(given->take(16 << 10).error().code, Code::over_budget);
  std::memset(second->region().data, 7, 10'000);
  char seen = 0;
  EXPECT_EQ(::pread(fd, &seen, 1, second->region().data - first->region().data), 1);
  EXPECT_EQ(seen, 7) << "others see it through the descriptor";
  const std::byte* const place = first->region().data;
  first.reset();
  EXPECT_EQ(given->take(4096).value()->region().data, place);
  EXPECT_EQ(given->take(SIZE_MAX).error().code, Code::over_budget);
  ::close(fd);
}

TEST(Given, what_can_not_be_mapped_is_refused) {
  EXPECT_FALSE(Given::map(-1).ok());
  const int empty = make_memfd(0);
  EXPECT_FALSE(Given::map(empty).ok());
  ::close(empty);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_FALSE(Given::map(ends[0]).ok());
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace penstock::memory
