// Cold rows, and the operations that read them: each row once, with its neighbours. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "services/rows/table.h"

namespace penstock::rows {

struct ColdRow {
  std::uint64_t row = 0;
  std::uint64_t position = 0;  // among the numbers

  friend auto operator<=>(const ColdRow&, const ColdRow&) = default;  // NOLINT(modernize-use-nullptr): no pointer is
};

// How a row is read that has no cold neighbours and is asked for once.
enum class Lone : std::uint8_t { straight, by_scratch };

// Whole blocks, with all cold rows that lie in them.
struct ColdExtent {
  std::size_t part = 0;  // of the layout
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::size_t first = 0;     // of the cold rows
  std::size_t count = 0;     // one that is asked for twice counts twice
  bool is_straight = false;  // read to the place of its only row, and not into the scratch
  std::uint64_t scratch_offset = 0;
};

struct ColdPlan {
  std::vector<ColdExtent> extents;
  std::size_t straight_rows = 0;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t read_bytes = 0;    // without the blocks around straight rows, which whoever reads them tells
  std::uint64_t wanted_bytes = 0;  // of these: rows that were asked for, each once
};

// `cold` ascends.
ColdPlan plan_cold(const Table& table, std::span<const ColdRow> cold, Lone lone);
// Nearly as many as there are, and never more. In any order.
std::size_t different_rows_at_least(std::span<const ColdRow> cold);
// No row takes more scratch than this.
std::uint64_t scratch_bytes_of_row(const Table& table);

// Calls visit(position, scratch offset) for each row that is not read straight. `cold` is that of the plan.
template <typename Visit>
void for_each_in_scratch(const Table& table, const ColdPlan& plan, std::span<const ColdRow> cold, Visit visit) {
  for (const ColdExtent& extent : plan.extents) {
    if (extent.is_straight) continue;
    const Layout::Part& about = table.layout()->parts[extent.part];
    for (const ColdRow& each : cold.subspan(extent.first, extent.count)) {
      visit(each.position, extent.scratch_offset + (about.offset_of(each.row) - extent.offset));
    }
  }
}

}  // namespace penstock::rows
