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

  friend auto operator<=>(const ColdRow&, const ColdRow&) = default;
};

struct ColdExtent {
  std::size_t part = 0;  // of the layout
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t scratch_offset = 0;
};

struct ColdPlan {
  std::vector<ColdExtent> extents;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t wanted_bytes = 0;  // of these: rows that were asked for, each once
};

// `cold` ascends.
ColdPlan plan_cold(const Table& table, std::span<const ColdRow> cold);
// Nearly as many as there are, and never more. In any order.
std::size_t different_rows_at_least(std::span<const ColdRow> cold);
// No row takes more scratch than this.
std::uint64_t scratch_bytes_of_row(const Table& table);

// Calls take(ColdRow, scratch offset) for each. `cold` is that of the plan.
template <typename Take>
void place_cold(const Table& table, const ColdPlan& plan, std::span<const ColdRow> cold, Take take) {
  auto extent = plan.extents.begin();
  for (const ColdRow& each : cold) {
    const std::size_t part = table.layout()->part_of(each.row);
    const Layout::Part& about = table.layout()->parts[part];
    const std::uint64_t offset = about.offset + (each.row - about.first_row) * about.stride_bytes;
    while (extent->part != part || offset >= extent->offset + extent->length) ++extent;
    take(each, extent->scratch_offset + (offset - extent->offset));
  }
}

}  // namespace penstock::rows
