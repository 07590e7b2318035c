#include "services/rows/turns.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace penstock::rows {
namespace {

constexpr std::uint64_t row_bytes = 16;

class TurnsTest : public testing::Test {
 protected:
  Table make_table(std::uint64_t scratch_bytes) {
    const Recipe recipe{"made", std::uint64_t{1} << 40, [](std::uint64_t, std::span<std::byte>) { return Status(); }};
    auto shard = std::make_shared<const Shard>(context_.open(recipe).value(),
                                               Place{0, row_bytes, (std::uint64_t{1} << 40) / row_bytes, false});
    TableInfo info;
    info.row_bytes = row_bytes;
    return {context_, std::move(info), {std::move(shard)}, {.join_bytes = 0, .scratch_bytes = scratch_bytes}};
  }
  // Every tenth of the rows is cold, and no neighbour of another.
  static std::vector<ColdRow> a_tenth(std::size_t rows) {
    std::vector<ColdRow> cold;
    for (std::size_t position = 5; position < rows; position += 10) cold.push_back({2 * (rows - position), position});
    return cold;
  }
  // Each row has its turn, once, and in order.
  static Turns turns_of(const Table& table, std::span<const ColdRow> cold, std::size_t rows, Lone lone) {
    return {table, cold, rows, lone, table.options().scratch_bytes};
  }
  static std::vector<Turn> all_of(Turns turns, std::span<const ColdRow> cold, std::size_t rows) {
    std::vector<Turn> all;
    std::size_t position = 0;
    std::size_t cold_before = 0;
    for (Turn turn = turns.next(); turn.rows.count != 0; turn = turns.next()) {
      EXPECT_EQ(turn.rows.first, position);
      position = turn.rows.end();
      std::vector<ColdRow> expected;
      for (; cold_before < cold.size() && cold[cold_before].position < position; ++cold_before) {
        expected.push_back(cold[cold_before]);
      }
      std::ranges::sort(expected);
      EXPECT_EQ(turn.cold, expected);
      all.push_back(std::move(turn));
    }
    EXPECT_EQ(position, rows);
    EXPECT_EQ(cold_before, cold.size());
    return all;
  }

  Context context_ = Context::create({.lanes = 1}).value();
};

TEST_F(TurnsTest, are_one_where_all_have_room) {
  const Table table = make_table(1 << 20);
  for (const std::size_t rows : {std::size_t{1}, std::size_t{4}, std::size_t{400'000}}) {
    const auto cold = a_tenth(rows);
    EXPECT_EQ(all_of(turns_of(table, cold, rows, Lone::straight), cold, rows).size(), 1U) << rows;
  }
}

TEST_F(TurnsTest, are_several_where_too_many_rows_are_cold) {
  const Table table = make_table(1 << 20);
  constexpr std::size_t rows = 700'000;
  const auto cold = a_tenth(rows);
  const auto turns = all_of(turns_of(table, cold, rows, Lone::straight), cold, rows);
  EXPECT_GT(turns.size(), 4U);
  for (const Turn& turn : turns) {
    EXPECT_LE(turn.plan.straight_rows, 16384U);
    EXPECT_EQ(turn.plan.scratch_bytes, 0U);
  }
}

TEST_F(TurnsTest, share_the_scratch) {
  constexpr std::uint64_t scratch_bytes = 64 << 10;
  const Table table = make_table(scratch_bytes);
  constexpr std::size_t rows = 100'000;
  const auto cold = a_tenth(rows);
  const Turns turns = turns_of(table, cold, rows, Lone::by_scratch);
  EXPECT_GT(turns.at_once(), 1U);
  for (const Turn& turn : all_of(turns, cold, rows)) {
    EXPECT_EQ(turn.plan.straight_rows, 0U);
    EXPECT_LE(turn.plan.scratch_bytes, scratch_bytes / turns.at_once());
  }
}

TEST_F(TurnsTest, read_all_by_the_scratch_where_most_are) {
  const Table table = make_table(1 << 20);
  const std::vector<ColdRow> few_alone = {{1, 0}, {100, 1}, {101, 2}};
  EXPECT_EQ(turns_of(table, few_alone, 10, Lone::straight).next().plan.straight_rows, 0U);
  const std::vector<ColdRow> most_alone = {{1, 0}, {20, 1}, {40, 2}, {100, 3}, {101, 4}};
  EXPECT_EQ(turns_of(table, most_alone, 10, Lone::straight).next().plan.straight_rows, 3U);
}

TEST_F(TurnsTest, have_at_least_one_row_each_however_little_the_scratch_is) {
  const Table table = make_table(1);
  const auto cold = a_tenth(100);
  EXPECT_EQ(all_of(turns_of(table, cold, 100, Lone::by_scratch), cold, 100).size(), cold.size());
}

TEST_F(TurnsTest, are_as_long_as_their_rows_have_room_whatever_those_before_took) {
  constexpr std::uint64_t scratch_bytes = 1 << 20;
  const Table table = make_table(scratch_bytes);
  std::mt19937_64 random(1);
  std::vector<ColdRow> cold;
  // Some often, then each once, then some often again.
  for (std::size_t position = 0; position < 90'000; ++position) {
    const bool is_often = position < 10'000 || position >= 80'000;
    cold.push_back({is_often ? random() % 50 : 1000 + 2 * (random() % 10'000'000), position});
  }
  const Turns turns = turns_of(table, cold, cold.size(), Lone::straight);
  for (const Turn& turn : all_of(turns, cold, cold.size())) {
    EXPECT_LE(turn.plan.scratch_bytes, scratch_bytes / turns.at_once());
    EXPECT_LE(turn.plan.straight_rows, 16384U);
  }
}

}  // namespace
}  // namespace penstock::rows
