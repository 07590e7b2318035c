#include "core/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace penstock::core {
namespace {

using engine::Path;

TEST(Align, goes_to_the_next_multiple_or_stays) {
  EXPECT_EQ(align_down(4097, 4096), 4096U);
  EXPECT_EQ(align_up(4097, 4096), 8192U);
  EXPECT_EQ(align_down(8192, 4096), 8192U);
  EXPECT_EQ(align_up(8192, 4096), 8192U);
}

TEST(Cut, ends_pieces_through_the_cache_at_chunk_boundaries) {
  const CutRules rules{.path = Path::cached, .chunk_bytes = 1 << 20};
  EXPECT_EQ(cut(rules, {.offset = 0, .length = 3 << 20, .address = 1}), (Cut{1 << 20, Shape::plain}));
  EXPECT_EQ(cut(rules, {.offset = 100, .length = 3 << 20, .address = 1}), (Cut{(1 << 20) - 100, Shape::plain}));
  EXPECT_EQ(cut(rules, {.offset = 100, .length = 5, .address = 1}), (Cut{5, Shape::plain}));
}

TEST(Cut, makes_long_pieces_that_still_end_at_chunk_boundaries) {
  const CutRules rules{.path = Path::buffered, .chunk_bytes = 1 << 20, .longest_bytes = 4 << 20};
  EXPECT_EQ(cut(rules, {.offset = 0, .length = 9 << 20, .address = 1}), (Cut{4 << 20, Shape::plain}));
  EXPECT_EQ(cut(rules, {.offset = 3 << 20, .length = 9 << 20, .address = 1}), (Cut{4 << 20, Shape::plain}));
  EXPECT_EQ(cut(rules, {.offset = 100, .length = 9 << 20, .address = 1}), (Cut{(4 << 20) - 100, Shape::plain}));
}

TEST(Cut, stages_everything_that_goes_to_a_gpu) {
  CutRules rules{.path = Path::cached, .chunk_bytes = 1 << 20, .longest_bytes = 4 << 20, .staged_only = true};
  rules.staging_bytes = 4 << 20;
  EXPECT_EQ(cut(rules, {.offset = 0, .length = 9 << 20, .address = 4096}), (Cut{4 << 20, Shape::staged}));
  rules.path = Path::direct;
  EXPECT_EQ(cut(rules, {.offset = 4096, .length = 8192, .address = 4096}), (Cut{8192, Shape::staged}));
}

TEST(Cut, reads_aligned_bytes_straight_into_aligned_memory) {
  const CutRules rules{.path = Path::direct};
  EXPECT_EQ(cut(rules, {.offset = 4096, .length = 8192, .address = 512}), (Cut{8192, Shape::plain}));
  EXPECT_EQ(cut(rules, {.offset = 4096, .length = 10'000, .address = 512}), (Cut{8192, Shape::plain}));
}

TEST(Cut, reads_a_short_unaligned_range_in_one_operation) {
  const CutRules rules{.path = Path::direct};
  EXPECT_EQ(cut(rules, {.offset = 1, .length = 20'000, .address = 7}), (Cut{20'000, Shape::staged}));
}

TEST(Cut, stages_only_the_head_of_a_read_whose_body_is_aligned) {
  const CutRules rules{.path = Path::direct};
  // After the rest of the first block the address is aligned again.
  EXPECT_EQ(cut(rules, {.offset = 4096 + 96, .length = 1 << 20, .address = 8192 + 96}), (Cut{4000, Shape::staged}));
}

TEST(Cut, stages_a_whole_read_whose_memory_never_aligns) {
  const CutRules rules{.path = Path::direct, .chunk_bytes = 1 << 20, .staging_bytes = 256 << 10};
  EXPECT_EQ(cut(rules, {.offset = 0, .length = 1 << 20, .address = 1}), (Cut{256 << 10, Shape::staged}));
  EXPECT_EQ(cut(rules, {.offset = 10, .length = 1 << 20, .address = 1}), (Cut{(256 << 10) - 10, Shape::staged}));
}

TEST(Cut, writes_partial_blocks_as_edges) {
  const CutRules rules{.direction = Direction::write, .path = Path::direct};
  EXPECT_EQ(cut(rules, {.offset = 96, .length = 1 << 20, .address = 0}), (Cut{4000, Shape::edge}));
  EXPECT_EQ(cut(rules, {.offset = 96, .length = 10, .address = 0}), (Cut{10, Shape::edge}));
  EXPECT_EQ(cut(rules, {.offset = 4096, .length = 4095, .address = 0}), (Cut{4095, Shape::edge}));
  EXPECT_EQ(cut(rules, {.offset = 4096, .length = 4097, .address = 0}), (Cut{4096, Shape::plain}));
  EXPECT_EQ(cut(rules, {.offset = 4096, .length = 4097, .address = 1}), (Cut{4096, Shape::staged}));
}

TEST(Cut, goes_on_by_a_block_where_staging_memory_holds_none) {
  CutRules rules{.path = Path::direct, .alignment = 1 << 20, .staged_only = true, .staging_bytes = 0};
  EXPECT_EQ(cut(rules, {.offset = 3, .length = 5000, .address = 0}), (Cut{5000, Shape::staged}));
  EXPECT_EQ(cut(rules, {.offset = 3, .length = 2 << 20, .address = 0}), (Cut{(1 << 20) - 3, Shape::staged}));
  rules.direction = Direction::write;
  EXPECT_EQ(cut(rules, {.offset = 0, .length = 2 << 20, .address = 0}), (Cut{1 << 20, Shape::staged}));
  rules.path = Path::cached;
  EXPECT_EQ(cut(rules, {.offset = 3, .length = 5000, .address = 0}), (Cut{1, Shape::staged}));
}

struct Sample {
  CutRules rules;
  Rest rest;
};

Sample random_sample(std::mt19937_64& random) {
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  Sample sample;
  CutRules& rules = sample.rules;
  rules.direction = below(2) == 0 ? Direction::read : Direction::write;
  rules.path = static_cast<Path>(below(3));
  rules.alignment = std::uint64_t{512} << below(8);
  rules.memory_alignment = std::uint64_t{4} << below(11);
  rules.chunk_bytes = rules.alignment * (1 + below(64));
  rules.longest_bytes = rules.chunk_bytes * (1 + below(4));
  rules.staging_bytes = rules.alignment * (1 + below(16));
  const auto somewhere = [&](std::uint64_t limit) {
    return below(3) == 0 ? align_down(below(limit), rules.alignment) : below(limit);
  };
  sample.rest = {somewhere(1ULL << 40), 1 + somewhere(4 << 20), static_cast<std::uintptr_t>(somewhere(1ULL << 46))};
  return sample;
}

void check_piece(const CutRules& rules, const Rest& rest, const Cut& piece) {
  ASSERT_GT(piece.length, 0U);
  ASSERT_LE(piece.length, rest.length);
  if (rules.path != Path::direct) {
    ASSERT_EQ(piece.shape, Shape::plain);
    ASSERT_LE(piece.length, rules.longest_bytes);
    return;
  }
  const std::uint64_t first = align_down(rest.offset, rules.alignment);
  const std::uint64_t around = align_up(rest.offset + piece.length, rules.alignment) - first;
  switch (piece.shape) {
    case Shape::plain:
      ASSERT_EQ(rest.offset % rules.alignment, 0U);
      ASSERT_EQ(piece.length % rules.alignment, 0U);
      ASSERT_EQ(rest.address % rules.memory_alignment, 0U);
      ASSERT_LE(piece.length, rules.longest_bytes);
      break;
    case Shape::staged:
      ASSERT_LE(around, rules.staging_bytes);
      if (rules.direction == Direction::write) {
        ASSERT_EQ(around, piece.length) << "a staged write would bring bytes that nobody gave";
      }
      break;
    case Shape::edge:
      ASSERT_EQ(rules.direction, Direction::write);
      ASSERT_EQ(around, rules.alignment) << "an edge is part of one block";
      ASSERT_LT(piece.length, rules.alignment);
      break;
  }
}

TEST(Cut, takes_any_range_apart_into_pieces_that_fit_and_nothing_else) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    const Sample sample = random_sample(random);
    const CutRules& rules = sample.rules;
    std::uint64_t moved = 0;
    std::uint64_t pieces = 0;
    while (moved < sample.rest.length) {
      const Rest rest{sample.rest.offset + moved, sample.rest.length - moved, sample.rest.address + moved};
      const Cut piece = cut(rules, rest);
      ASSERT_NO_FATAL_FAILURE(check_piece(rules, rest, piece))
          << "sample " << i << ": offset " << rest.offset << " length " << rest.length << " address " << rest.address
          << " alignment " << rules.alignment << " chunk " << rules.chunk_bytes << " staging " << rules.staging_bytes;
      moved += piece.length;
      ++pieces;
    }
    ASSERT_EQ(moved, sample.rest.length);
    const std::uint64_t largest = std::min(rules.longest_bytes, rules.staging_bytes);
    ASSERT_LE(pieces, 2 * (sample.rest.length / largest + 2)) << "sample " << i << " was cut into crumbs";
  }
}

}  // namespace
}  // namespace penstock::core
