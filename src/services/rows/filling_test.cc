#include "services/rows/filling.h"

#include <gtest/gtest.h>

#include <random>

namespace penstock::rows {
namespace {

// By what each position is, which is the definition.
std::vector<bool> filled_by_definition(const Positions& rows, const std::vector<bool>& is_cold, std::size_t bridged) {
  std::vector<bool> filled(rows.count);
  for (std::size_t i = 0; i < rows.count;) {
    std::size_t end = i;
    while (end < rows.count && is_cold[end] == is_cold[i]) ++end;
    const bool is_between = i != 0 && end != rows.count;
    for (std::size_t at = i; at < end; ++at) filled[at] = !is_cold[i] || (is_between && end - i <= bridged);
    i = end;
  }
  return filled;
}

TEST(Filling, leaves_out_long_stretches_of_cold_rows_and_those_at_the_ends) {
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    const Positions rows{random() % 5, random() % 20};
    const std::size_t bridged = random() % 4;
    const std::size_t cold_of_ten = random() % 11;
    std::vector<bool> is_cold(rows.count);
    std::vector<ColdRow> cold;
    for (std::size_t i = 0; i < rows.count; ++i) {
      is_cold[i] = random() % 10 < cold_of_ten;
      if (is_cold[i]) cold.push_back({.row = random(), .position = rows.first + i});
    }
    std::vector<bool> filled(rows.count);
    std::size_t last_end = 0;
    for (const Positions& run : runs_around(rows, cold, bridged)) {
      ASSERT_NE(run.count, 0U);
      ASSERT_TRUE(last_end == 0 || run.first > last_end) << "two that touch are one";
      last_end = run.end();
      for (std::size_t at = run.first; at < run.end(); ++at) filled.at(at - rows.first) = true;
    }
    ASSERT_EQ(filled, filled_by_definition(rows, is_cold, bridged)) << "round " << round;
  }
}

}  // namespace
}  // namespace penstock::rows
