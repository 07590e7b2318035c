#include "core/replacing.h"

#include <gtest/gtest.h>

namespace penstock::core {
namespace {

TEST(Replacing, is_whole_again_when_all_that_failed_was_written) {
  Replacing replacing;
  EXPECT_TRUE(replacing.is_whole());
  replacing.failed(100, 200);
  replacing.failed(300, 400);
  EXPECT_FALSE(replacing.is_whole());
  replacing.written(100, 200);
  replacing.written(301, 400);
  EXPECT_FALSE(replacing.is_whole());
  replacing.written(0, 1000);
  EXPECT_TRUE(replacing.is_whole());
}

TEST(Replacing, forgets_nothing_where_more_failed_than_it_has_room_for) {
  Replacing replacing;
  for (std::uint64_t i = 0; i < 100; ++i) replacing.failed(10 * i, 10 * i + 1);
  for (std::uint64_t i = 0; i < 100; ++i) replacing.written(10 * i, 10 * i + 1);
  EXPECT_FALSE(replacing.is_whole()) << "the last of them are one stretch";
  replacing.written(0, 1000);
  EXPECT_TRUE(replacing.is_whole());
}

TEST(Replacing, ends_once) {
  Replacing replacing;
  replacing.finish(Replacing::State::aborted);
  replacing.finish(Replacing::State::committed);
  EXPECT_EQ(replacing.state(), Replacing::State::aborted);
}

}  // namespace
}  // namespace penstock::core
