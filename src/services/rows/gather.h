// Gather: one call of Rows::gather, from the numbers to the report.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/models.h"
#include "services/rows/cold.h"
#include "services/rows/fill.h"
#include "services/rows/table.h"

namespace penstock::rows {

// `by_scratch`: nothing is written to the memory any more when it has returned, also where operations are abandoned.
RowsReport gather(const Table& table, const RowNumbers& numbers, Region memory, const GatherOptions& options,
                  Lone lone = Lone::straight);
// Rows that lie one behind the other are read as ranges, and come by whichever way the planner chooses.
RowsReport read_rows(const Table& table, Interval rows, Region memory, const GatherOptions& options);

// The fill of rows all of which are mapped, or missing; none where some are cold.
struct MappedFill {
  std::unique_ptr<const Fill> fill;
  std::uint64_t missing_rows = 0;
};
// REQUIRES: numbers in host memory, whole and aligned, which stay as long as the fill.
Result<MappedFill> mapped_fill(const Table& table, const RowNumbers& numbers, const GatherOptions& options);

Result<std::uint64_t> prefetch(const Table& table, const RowNumbers& numbers);

}  // namespace penstock::rows
