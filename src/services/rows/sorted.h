// Sorted: which rows of a gather lie in a mapping, which are cold, and which are none.
//
// Thread safety: any thread. Lifetime: functions. REQUIRES, of all: numbers in host memory, whole and aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "services/rows/cold.h"
#include "services/rows/table.h"

namespace penstock::rows {

// Whether all are rows of the table; Code::out_of_range names the first that is not. They are those of a longer list
// where `places` says which.
Status check_numbers(const Table& table, const RowNumbers& numbers, std::span<const std::uint32_t> places = {});

// Whether all of the table is mapped, as far as is known.
bool is_mapped(const Table& table);
// Asks the system which of these rows are in the page cache, where nobody has asked lately; as long as `goes_on` wants
// to, and all others are cold then.
void look(const Table& table, const RowNumbers& numbers, const std::function<bool()>& goes_on = [] { return true; });

struct Sorted {
  std::vector<ColdRow> cold;  // by position
  std::vector<std::uint64_t> missing;
};
// Which rows are not in a mapping, or nowhere. `all_are_rows`: they were checked, and numbers_changed where one is
// none.
Result<Sorted> sort_out(const Table& table, const RowNumbers& numbers, bool all_are_rows);

// Where those of the rows from the position `first` on lie that are in a mapping, or would be.
void point_to_mapped(const Table& table, const RowNumbers& numbers, std::size_t first,
                     std::span<const std::byte*> sources);

}  // namespace penstock::rows
