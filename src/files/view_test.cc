#include <gtest/gtest.h>

#include <array>
#include <cerrno>

#include "files/file_store.h"
#include "files/guarded_copy.h"
#include "files/test_scratch.h"

namespace penstock::files {
namespace {

class AView : public testing::Test {
 protected:
  static constexpr std::size_t size_bytes = 300'000;

  AView()
      : name_(folder_.write_pattern("a", size_bytes)),
        store_(open_file(name_, {}).value()),
        view_(store_.mapping()->map().value()),
        memory_(size_bytes) {}

  void truncate(std::size_t size) const { std::filesystem::resize_file(name_, size); }

  ScratchFolder folder_;
  std::string name_;
  FileStore store_;
  View view_;
  std::vector<std::byte> memory_;
};

TEST_F(AView, copies_any_part) {
  for (const auto& [offset, length] : {std::pair<std::size_t, std::size_t>{0, size_bytes}, {1, 70'001}, {299'999, 1}}) {
    ASSERT_TRUE(view_.copy_to(offset, Region::host(memory_.data(), length)).ok());
    EXPECT_TRUE(has_pattern(memory_.data(), offset, length));
  }
}

TEST_F(AView, refuses_ranges_past_its_end) {
  EXPECT_EQ(view_.copy_to(size_bytes, Region::host(memory_.data(), 1)).error().code, Code::out_of_range);
  EXPECT_EQ(view_.copy_to(UINT64_MAX, Region::host(memory_.data(), 2)).error().code, Code::out_of_range);
  EXPECT_EQ(view_.copy_to(2, Region::host(memory_.data(), SIZE_MAX)).error().code, Code::out_of_range);
  EXPECT_TRUE(view_.copy_to(size_bytes, Region::host(memory_.data(), 0)).ok());
}

TEST_F(AView, refuses_memory_that_the_cpu_can_not_reach) {
  EXPECT_EQ(view_.copy_to(0, {memory_.data(), 1, Domain::cuda(0)}).error().code, Code::invalid_argument);
}

TEST_F(AView, of_a_file_that_was_truncated_is_an_error_and_not_a_signal) {
  truncate(100'000);
  EXPECT_EQ(view_.copy_to(0, Region::host(memory_.data(), size_bytes)).error().code, Code::truncated);
  EXPECT_EQ(view_.copy_to(200'000, Region::host(memory_.data(), 10)).error().code, Code::truncated);
  EXPECT_TRUE(view_.copy_to(0, Region::host(memory_.data(), 100'000)).ok());
}

TEST_F(AView, moves_with_its_mapping) {
  View moved = std::move(view_);
  EXPECT_EQ(moved.bytes().size(), size_bytes);
  EXPECT_TRUE(view_.bytes().empty());  // NOLINT: that is what is asked here
  moved = View();
  EXPECT_TRUE(moved.bytes().empty());
}

TEST_F(AView, is_guarded_by_each_way_of_copying) {
  const std::array<int (*)(Copy), 2> ways{copy_by_process_vm, copy_by_pipe};
  for (const auto way : ways) {
    std::fill(memory_.begin(), memory_.end(), std::byte{});
    const int error = way({memory_.data(), view_.bytes().data() + 1, size_bytes - 1});
    if (error == EPERM || error == ENOSYS) continue;  // one way is refused here; the other must work
    EXPECT_EQ(error, 0);
    EXPECT_TRUE(has_pattern(memory_.data(), 1, size_bytes - 1));
  }
  EXPECT_EQ(copy_by_pipe({memory_.data(), view_.bytes().data(), size_bytes}), 0);
  truncate(100'000);
  EXPECT_EQ(copy_by_pipe({memory_.data(), view_.bytes().data(), size_bytes}), EFAULT);
  EXPECT_EQ(guarded_copy({memory_.data(), view_.bytes().data(), size_bytes}), EFAULT);
}

}  // namespace
}  // namespace penstock::files
