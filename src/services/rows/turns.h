// Turns: which rows of a gather are read and placed together. All of them where there is room for their cold ones,
// since a row is read once a turn. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "services/rows/cold.h"
#include "services/rows/table.h"

namespace penstock::rows {

struct Positions {
  std::size_t first = 0;
  std::size_t count = 0;

  std::size_t end() const { return first + count; }
};

struct Turn {
  Positions rows;
  std::vector<ColdRow> cold;  // of these, ascending
  ColdPlan plan;
};

class Turns {
 public:
  // Of `rows` rows, of which `cold` are, by position: they stay as long as it. Those that are read at the same time
  // have scratch memory of `room_bytes`. Where there have to be several, the first is found without sorting all of
  // them.
  Turns(const Table& table, std::span<const ColdRow> cold, std::size_t rows, Lone lone, std::uint64_t room_bytes);

  // So many have room at the same time, or more than there are.
  std::size_t at_once() const { return at_once_; }
  // Without rows: nothing is left.
  Turn next();

 private:
  void plan_whole();
  ColdPlan plan(std::span<const ColdRow> cold) const;
  bool fits(const ColdPlan& plan) const;

  const Table& table_;
  const std::span<const ColdRow> cold_;
  const std::size_t rows_;
  const Lone lone_;
  const std::uint64_t room_bytes_;
  const std::size_t straight_most_;  // in a turn
  Turn whole_;
  std::size_t at_once_ = 2;
  std::uint64_t scratch_bytes_ = 0;  // of a turn, at most; 0: all rows are one
  std::size_t cold_wanted_ = 0;      // in the next
  std::size_t cold_done_ = 0;
  std::size_t rows_done_ = 0;
};

}  // namespace penstock::rows
