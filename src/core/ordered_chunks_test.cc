#include "core/ordered_chunks.h"

#include <gtest/gtest.h>

#include <random>

namespace penstock::core {
namespace {

constexpr std::uint64_t mib = 1 << 20;

// Every byte once and in order; places in a slot that don't overlap and fit.
void expect_right(const std::vector<Span>& spans, std::uint64_t slot_bytes) {
  const auto cut = cut_into_chunks(spans, slot_bytes);
  ASSERT_TRUE(cut);
  std::vector<std::uint64_t> next(spans.size());
  std::uint32_t slice = 0;
  for (const OrderedChunks::Chunk& chunk : cut->chunks) {
    ASSERT_EQ(chunk.first, slice);
    ASSERT_NE(chunk.count, 0U);
    std::uint64_t used = 0;
    std::uint64_t bytes = 0;
    for (; slice < chunk.first + chunk.count; ++slice) {
      const Slice& one = cut->slices[slice];
      const Span& span = spans[one.span];
      ASSERT_EQ(one.position, next[one.span]);
      ASSERT_NE(one.length, 0U);
      ASSERT_GE(one.at, used);
      next[one.span] += one.length;
      used = one.at + one.length;
      bytes += one.length;
      ASSERT_LE(used, slot_bytes);
      if (span.length >= 64 << 10 && one.length >= 64 << 10) {
        ASSERT_EQ(one.at % 4096, (span.offset + one.position) % 4096);
      }
      if (one.position + one.length < span.length) {
        ASSERT_EQ((span.offset + one.position + one.length) % 4096, 0U);
      }
    }
    ASSERT_EQ(chunk.bytes, bytes);
  }
  ASSERT_EQ(slice, cut->slices.size());
  for (std::size_t i = 0; i < spans.size(); ++i) ASSERT_EQ(next[i], spans[i].length);
}

TEST(OrderedChunks, a_long_range_is_cut_at_multiples_of_its_chunks) {
  const std::vector<Span> spans = {{.offset = 4096, .length = 8 * mib}};
  expect_right(spans, 2 * mib + (64 << 10));
  const auto cut = cut_into_chunks(spans, 2 * mib + (64 << 10));
  EXPECT_EQ(cut->chunks[1].bytes, 2 * mib);
  EXPECT_EQ((cut->slices[1].position + spans[0].offset) % mib, 0U);
}

TEST(OrderedChunks, short_ranges_share_a_chunk) {
  const std::vector<Span> spans(100, Span{.offset = 12345, .length = 512});
  expect_right(spans, 2 * mib);
  EXPECT_EQ(cut_into_chunks(spans, 2 * mib)->chunks.size(), 1U);
}

TEST(OrderedChunks, what_is_transformed_stays_whole_or_does_not_fit) {
  Span made{.length = 100 << 10};
  made.transform = 1;
  const std::vector<Span> spans = {Span{.length = 60 << 10}, made};
  expect_right(spans, 128 << 10);
  EXPECT_EQ(cut_into_chunks(spans, 128 << 10)->chunks.size(), 2U);
  EXPECT_FALSE(cut_into_chunks(spans, 64 << 10));
}

TEST(OrderedChunks, nothing_is_no_chunk) {
  EXPECT_TRUE(cut_into_chunks({}, mib)->chunks.empty());
  const std::vector<Span> empty(3);
  EXPECT_TRUE(cut_into_chunks(empty, mib)->chunks.empty());
}

TEST(OrderedChunks, ranges_of_any_length_at_any_offset_are_whole) {
  std::mt19937_64 random(1);
  const auto pick = [&](std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(1, most)(random); };
  for (int round = 0; round < 200; ++round) {
    std::vector<Span> spans(pick(20));
    for (Span& span : spans) span = {.offset = pick(10 * mib), .length = pick(std::uint64_t{1} << pick(23))};
    for (const std::uint64_t slot : {std::uint64_t{64} << 10, std::uint64_t{192} << 10, 2 * mib + (64 << 10)}) {
      expect_right(spans, slot);
    }
  }
}

}  // namespace
}  // namespace penstock::core
