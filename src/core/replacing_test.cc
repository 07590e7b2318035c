#include "core/replacing.h"

#include <gtest/gtest.h>

#include <bitset>
#include <random>

namespace penstock::core {
namespace {

TEST(Replacing, is_whole_again_when_all_that_failed_was_written) {
  Replacing replacing;
  EXPECT_FALSE(replacing.unwritten());
  replacing.failed(100, 200);
  replacing.failed(300, 400);
  replacing.written(100, 200);
  replacing.written(301, 400);
  ASSERT_TRUE(replacing.unwritten());
  EXPECT_EQ(replacing.unwritten()->begin, 300U);
  EXPECT_EQ(replacing.unwritten()->end, 301U);
  replacing.written(0, 1000);
  EXPECT_FALSE(replacing.unwritten());
}

TEST(Replacing, knows_each_byte_that_failed) {
  constexpr std::size_t size = 64;
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Replacing replacing;
    std::bitset<size> failed;
    for (int step = 0; step < 50; ++step) {
      const std::size_t begin = random() % size;
      const std::size_t end = begin + random() % (size + 1 - begin);
      const bool fails = random() % 2 == 0;
      for (std::size_t i = begin; i < end; ++i) failed[i] = fails;
      fails ? replacing.failed(begin, end) : replacing.written(begin, end);
      const auto unwritten = replacing.unwritten();
      ASSERT_EQ(unwritten.has_value(), failed.any());
      if (!unwritten) continue;
      std::size_t first = 0;
      while (!failed[first]) ++first;
      EXPECT_EQ(unwritten->begin, first);
      while (first < size && failed[first]) ++first;
      EXPECT_EQ(unwritten->end, first);
    }
  }
}

TEST(Replacing, is_whole_again_however_many_failed) {
  Replacing replacing;
  for (std::uint64_t i = 0; i < 10'000; ++i) replacing.failed(10 * i, 10 * i + 1);
  for (std::uint64_t i = 10'000; i-- > 0;) replacing.written(10 * i, 10 * i + 1);
  EXPECT_FALSE(replacing.unwritten());
  EXPECT_FALSE(replacing.is_spoilt());
}

TEST(Replacing, ends_once) {
  Replacing replacing;
  replacing.finish(Replacing::State::aborted);
  replacing.finish(Replacing::State::committed);
  EXPECT_EQ(replacing.state(), Replacing::State::aborted);
}

}  // namespace
}  // namespace penstock::core
