// Gather: one call of Rows::gather, from the numbers to the report.
#pragma once

#include "penstock/models.h"
#include "services/rows/table.h"

namespace penstock::rows {

RowsReport gather(const Table& table, const RowNumbers& numbers, Region memory, const GatherOptions& options);
// Rows that lie one behind the other are read as ranges, and come by whichever way the planner chooses.
RowsReport read_rows(const Table& table, Interval rows, Region memory, const GatherOptions& options);
Result<std::uint64_t> prefetch(const Table& table, const RowNumbers& numbers);

}  // namespace penstock::rows
