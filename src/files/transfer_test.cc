#include "files/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "files/test_scratch.h"

namespace penstock::files {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using engine::Path;

class Transfer : public testing::Test {
 protected:
  static constexpr std::size_t size_bytes = 65536;

  Transfer()
      : store_(open_file(folder_.write_pattern("a", size_bytes), {.access = Access::write}).value()),
        memory_(size_bytes) {}

  Op op(OpKind kind, Path path, std::uint64_t offset, std::uint64_t length) {
    return {.kind = kind,
            .path = path,
            .store = &store_,
            .offset = offset,
            .length = length,
            .memory = memory_.data(),
            .cookie = 42};
  }

  ScratchFolder folder_;
  FileStore store_;
  AlignedMemory memory_;
};

TEST_F(Transfer, tells_the_route_by_the_path) {
  EXPECT_EQ(transfer(op(OpKind::read, Path::cached, 0, 10)).route, Route::cached);
  EXPECT_EQ(transfer(op(OpKind::read, Path::buffered, 0, 10)).route, Route::buffered);
  EXPECT_EQ(transfer(op(OpKind::read, Path::direct, 0, 4096)).route, Route::direct);
}

TEST_F(Transfer, reads_what_is_there_and_stops_at_the_end) {
  const Done done = transfer(op(OpKind::read, Path::buffered, size_bytes - 100, 4096));
  EXPECT_EQ(done.cookie, 42U);
  EXPECT_EQ(done.code, Code::ok);
  EXPECT_EQ(done.bytes, 100U);
  EXPECT_TRUE(has_pattern(memory_.data(), size_bytes - 100, 100));
  EXPECT_EQ(transfer(op(OpKind::read, Path::buffered, size_bytes, 10)).bytes, 0U);
}

TEST_F(Transfer, past_the_page_cache_needs_a_store_that_can) {
  const Done done = transfer(op(OpKind::read, Path::direct, 4096, 8192));
  if (store_.direct_fd() < 0) {
    EXPECT_EQ(done.system_error, EINVAL);
    GTEST_SKIP() << "no direct transfers on " << store_.info().file_system;
  }
  EXPECT_EQ(done.bytes, 8192U);
  EXPECT_TRUE(has_pattern(memory_.data(), 4096, 8192));
}

TEST_F(Transfer, refuses_offsets_that_no_file_has) {
  const Done done = transfer(op(OpKind::read, Path::buffered, UINT64_MAX, 10));
  EXPECT_EQ(done.code, Code::invalid_argument);
  EXPECT_EQ(done.bytes, 0U);
}

TEST_F(Transfer, writes_zeros_and_holes) {
  EXPECT_EQ(transfer(op(OpKind::zero, Path::buffered, 100, 5000)).bytes, 5000U);
  const Done hole = transfer(op(OpKind::deallocate, Path::buffered, 8192, 4096));
  std::fill_n(memory_.data(), 10, std::byte{1});
  EXPECT_EQ(transfer(op(OpKind::write, Path::buffered, 20000, 10)).bytes, 10U);
  EXPECT_EQ(transfer(op(OpKind::flush, Path::buffered, 0, 0)).code, Code::ok);
  const std::string content = folder_.read("a");
  EXPECT_EQ(static_cast<std::byte>(content[99]), pattern_at(99));
  EXPECT_EQ(std::count(content.begin() + 100, content.begin() + 5100, '\0'), 5000);
  EXPECT_EQ(static_cast<std::byte>(content[5100]), pattern_at(5100));
  EXPECT_EQ(content[20009], 1);
  if (hole.code == Code::unsupported) GTEST_SKIP() << "no holes on " << store_.info().file_system;
  EXPECT_EQ(std::count(content.begin() + 8192, content.begin() + 12288, '\0'), 4096);
}

TEST_F(Transfer, leaves_retrying_to_the_caller) {
  for (const int error : {EAGAIN, EINTR}) {
    const Done done = finish(op(OpKind::read, Path::buffered, 0, 1), -error);
    EXPECT_EQ(done.code, Code::io_error);
    EXPECT_EQ(done.system_error, error);
  }
  EXPECT_EQ(finish(op(OpKind::read, Path::buffered, 0, 1), -ECANCELED).code, Code::cancelled);
  EXPECT_EQ(finish(op(OpKind::read, Path::buffered, 0, 1), -ENOSPC).code, Code::no_space);
}

}  // namespace
}  // namespace penstock::files
