#include "services/rows/fill.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

namespace penstock::rows {
namespace {

// Two parts of four rows each; row i has the byte i.
class FillTest : public testing::Test {
 protected:
  static constexpr std::uint64_t row_bytes = 16;

  FillTest() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<std::byte>(i / row_bytes);
  }
  std::shared_ptr<Layout> layout(std::size_t parts) const {
    auto made = std::make_shared<Layout>();
    made->row_bytes = row_bytes;
    made->rows = 8;
    for (std::size_t i = 0; i < parts; ++i) {
      const std::uint64_t first = i * 8 / parts;
      made->parts.push_back({first, 0, row_bytes, bytes_.data() + first * row_bytes});
    }
    return made;
  }

  std::array<std::byte, 8 * row_bytes> bytes_;
};

TEST_F(FillTest, copies_no_row_that_is_not_there_though_numbers_changed_since_they_were_checked) {
  for (const std::size_t parts : {1U, 2U}) {
    std::vector<std::uint32_t> numbers{0, 7, 3};
    const Fill fill(layout(parts), numbers);
    std::vector<std::byte> memory(3 * row_bytes);
    ASSERT_TRUE(fill.make(0, memory).ok());
    EXPECT_EQ(memory[row_bytes], std::byte{7});

    numbers[1] = 8;
    const Status refused = fill.make(0, memory);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::invalid_argument);
    EXPECT_NE(refused.error().message.find("changed"), std::string::npos) << refused.error().message;
    numbers[1] = UINT32_MAX;
    EXPECT_FALSE(fill.make(row_bytes + 1, std::span(memory).first(row_bytes)).ok()) << "within a row";
  }
}

TEST_F(FillTest, copies_no_row_of_a_part_that_is_not_mapped_though_numbers_changed_since_they_were_checked) {
  const auto half_mapped = layout(2);
  half_mapped->parts[1].data = nullptr;
  std::vector<std::uint32_t> numbers{0, 1, 3};
  const Fill fill(half_mapped, numbers);
  std::vector<std::byte> memory(3 * row_bytes);
  EXPECT_TRUE(fill.make(0, memory).ok());
  numbers[1] = 5;
  EXPECT_FALSE(fill.make(0, memory).ok());
}

}  // namespace
}  // namespace penstock::rows
