// Views of files: what they show, how long they live, what they refuse.
#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <vector>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

class Views : public ContextTest {
 protected:
  Context context_ = make_context();
};

TEST_F(Views, show_the_bytes_of_the_file) {
  const Store store = context_.open(make_file("file")).value();
  EXPECT_TRUE(store.info().mappable);
  const View view = store.view().value();
  ASSERT_EQ(view.bytes().size(), size_bytes);
  EXPECT_TRUE(holds_content(view.bytes(), 1, 0));
  std::vector<std::byte> memory(1000);
  ASSERT_TRUE(view.copy_to(12'345, Region::host(memory.data(), memory.size())).ok());
  EXPECT_TRUE(holds_content(memory, 1, 12'345));
}

TEST_F(Views, outlive_their_store_and_context) {
  View view;
  {
    Context context = make_context();
    view = context.open(make_file("file")).value().view().value();
  }
  EXPECT_TRUE(holds_content(view.bytes(), 1, 0));
}

TEST_F(Views, of_a_truncated_file_are_an_error_and_not_a_crash) {
  const std::string path = make_file("file");
  const View view = context_.open(path).value().view().value();
  std::filesystem::resize_file(path, 10'000);
  std::vector<std::byte> memory(size_bytes);
  const Status status = view.copy_to(0, Region::host(memory.data(), memory.size()));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Code::truncated);
  EXPECT_TRUE(view.copy_to(0, Region::host(memory.data(), 10'000)).ok());
  EXPECT_TRUE(holds_content(std::span(memory).first(10'000), 1, 0));
}

TEST_F(Views, refuse_what_they_can_not_do) {
  const Store store = context_.open(make_file("file", 100)).value();
  const View view = store.view().value();
  std::byte byte{};
  EXPECT_EQ(view.copy_to(100, Region::host(&byte, 1)).error().code, Code::out_of_range);
  EXPECT_EQ(view.copy_to(UINT64_MAX, Region::host(&byte, 1)).error().code, Code::out_of_range);
  EXPECT_EQ(view.copy_to(0, Region{&byte, 1, Domain::cuda(0)}).error().code, Code::invalid_argument);
  EXPECT_TRUE(view.copy_to(100, Region::host(nullptr, 0)).ok());
  EXPECT_TRUE(context_.open(make_file("empty", 0)).value().view().value().bytes().empty());
}

}  // namespace
}  // namespace penstock::test
