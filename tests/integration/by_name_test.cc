// One call that opens, allocates and reads.
#include <gtest/gtest.h>

#include "integration/context_fixture.h"

namespace penstock::test {
namespace {

class ByName : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    write_file(folder_.path("file"), content(1, 0, size));
  }
  static constexpr std::size_t size = 100'000;
};

TEST_F(ByName, reads_all_of_a_store_into_memory_of_its_own) {
  Context context = make_context();
  const auto loaded = context.read(folder_.path("file"), {}, Domain::host());
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->buffer.size_bytes(), size);
  EXPECT_TRUE(holds_content(loaded->buffer.bytes(), 1, 0));
  EXPECT_EQ(loaded->report.bytes, size);
  EXPECT_FALSE(loaded->report.reason.empty());
}

TEST_F(ByName, reads_part_of_it) {
  Context context = make_context();
  const auto part = context.read(folder_.path("file"), {.offset = 12'345, .length = 678}, Domain::pinned());
  ASSERT_TRUE(part.ok()) << part.error().message;
  EXPECT_EQ(part->buffer.size_bytes(), 678U);
  EXPECT_TRUE(holds_content(part->buffer.bytes(), 1, 12'345));
  EXPECT_EQ(context.read(folder_.path("file"), {.offset = 99'000}, Domain::host())->buffer.size_bytes(), 1000U);
}

TEST_F(ByName, says_what_is_wrong) {
  Context context = make_context();
  EXPECT_EQ(context.read(folder_.path("none"), {}, Domain::host()).error().code, Code::not_found);
  EXPECT_EQ(context.read(folder_.path("file"), {.offset = 99'000, .length = 2000}, Domain::host()).error().code,
            Code::out_of_range);
}

TEST_F(ByName, finds_nothing_at_the_end_and_no_such_place_past_it) {
  Context context = make_context();
  const auto nothing = context.read(folder_.path("file"), {.offset = size}, Domain::host());
  ASSERT_TRUE(nothing.ok()) << nothing.error().message;
  EXPECT_EQ(nothing->buffer.size_bytes(), 0U);
  EXPECT_EQ(context.read(folder_.path("file"), {.offset = size + 1}, Domain::host()).error().code, Code::out_of_range);
}

}  // namespace
}  // namespace penstock::test
