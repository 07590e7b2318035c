#include "core/spans.h"

#include <gtest/gtest.h>

namespace penstock::core {
namespace {

TEST(Spans, one_needs_no_memory) {
  SpareSpans spare;
  Spans spans;
  spans.reserve(1, spare);
  spans.add({.offset = 7});
  EXPECT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].offset, 7U);
  EXPECT_EQ(spans.let_go().spans, 0U);
  EXPECT_EQ(spans.size(), 0U);
}

TEST(Spans, are_new_in_memory_that_was_used_before) {
  SpareSpans spare;
  Spans first;
  first.reserve(1000, spare);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    first.add({.offset = i, .transform = 5, .is_out_of_reach = true});
  }
  const Span* const data = first.begin();
  spare.keep(first.let_go());

  Spans second;
  second.reserve(900, spare);
  for (std::uint64_t i = 0; i < 900; ++i) {
    second.add({});
    const Span& span = second[i];
    EXPECT_TRUE(span.offset == 0 && !span.is_out_of_reach && span.transform == 0);
  }
  EXPECT_EQ(second.begin(), data);
  EXPECT_EQ(second.end() - second.begin(), 900);

  Spans beside;  // the memory is taken
  beside.reserve(900, spare);
  EXPECT_NE(beside.begin(), data);
}

TEST(SpareSpans, keep_the_longest_that_is_not_too_long) {
  SpareSpans spare;
  spare.keep(spare.take(100));
  spare.keep({std::make_unique<std::byte[]>(10 * sizeof(Span)), 10});
  EXPECT_EQ(spare.take(50).spans, 100U);
  spare.keep(spare.take(SpareSpans::most_kept + 1));
  EXPECT_EQ(spare.take(2).spans, 2U);
}

TEST(SpareSpans, a_long_list_is_whole_again_whatever_became_of_its_memory) {
  SpareSpans spare;
  for (std::uint64_t round = 0; round < 3; ++round) {
    Spans spans;
    spans.reserve(SpareSpans::most_kept, spare);
    for (std::uint64_t i = 0; i < SpareSpans::most_kept; ++i) spans.add({.offset = i + round});
    EXPECT_EQ(spans[0].offset, round);
    EXPECT_EQ(spans[SpareSpans::most_kept - 1].offset, SpareSpans::most_kept - 1 + round);
    spare.keep(spans.let_go());
  }
}

}  // namespace
}  // namespace penstock::core
