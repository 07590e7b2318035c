#include "services/rows/sorted.h"

#include <algorithm>
#include <chrono>
#include <shared_mutex>
#include <string>

#include "services/rows/fill.h"
#include "services/rows/numbers.h"

namespace penstock::rows {
namespace {

using Clock = std::chrono::steady_clock;

template <typename Number>
Error no_such_row(Number number, std::size_t position, const Table& table) {
  const std::string rows = std::to_string(table.info().rows);
  return {Code::out_of_range, 0,
          "the number " + std::to_string(number) + " at position " + std::to_string(position) +
              " is no row of the table, which has " + rows,
          table.info().rows == 0 ? "ask a table that has rows"
                                 : "give numbers from 0 to " + std::to_string(table.info().rows - 1) +
                                       "; a gather with zeros_for_missing gives rows of zeros for others"};
}

// Nobody changes what is known of a table's page cache as long as these are held.
std::vector<std::shared_lock<std::shared_mutex>> hold_residency(const Table& table) {
  std::vector<const Residency*> known;
  for (const auto& shard : table.shards()) {
    if (shard->residency() != nullptr) known.push_back(shard->residency());
  }
  // A table may be joined with itself, and one thread must not hold the same twice.
  std::ranges::sort(known);
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::vector<std::shared_lock<std::shared_mutex>> held;
  held.reserve(known.size());
  for (const Residency* each : known) held.push_back(each->hold());
  return held;
}

// The stretches of each part in which these rows lie, and nobody has looked lately.
std::vector<std::vector<std::size_t>> due_stretches(const Table& table, const RowNumbers& numbers) {
  const Layout& layout = *table.layout();
  const Clock::time_point now = Clock::now();
  const auto held = hold_residency(table);
  std::vector<std::vector<std::size_t>> due(layout.parts.size());
  std::vector<Clock::time_point> due_before;
  for (std::size_t part = 0; part < layout.parts.size(); ++part) {
    const Residency* const residency = table.shard(part).residency();
    due_before.push_back(residency != nullptr ? residency->due_before(now) : now);
  }
  with_numbers(numbers, [&](auto span) {
    for (const auto number : span) {
      const std::uint64_t row = row_of(number);
      if (row >= table.info().rows) continue;
      const std::size_t part = layout.part_of(row);
      const Residency* const residency = table.shard(part).residency();
      if (residency == nullptr) continue;
      const std::uint64_t offset = layout.parts[part].offset_of(row);
      const std::size_t last = residency->stretch_of(offset + layout.row_bytes - 1);
      for (std::size_t stretch = residency->stretch_of(offset); stretch <= last; ++stretch) {
        if (residency->is_due(stretch, due_before[part])) due[part].push_back(stretch);
      }
    }
  });
  return due;
}

}  // namespace

Status check_numbers(const Table& table, const RowNumbers& numbers, std::span<const std::uint32_t> places) {
  return with_numbers(numbers, [&](auto span) -> Status {
    const std::uint64_t rows = table.info().rows;
    // The topmost bit is set if one is past the last row. Without comparisons any processor looks at several at once.
    std::uint64_t seen = 0;
    for (const auto number : span) seen |= row_of(number) | (rows - 1 - row_of(number));
    if (seen >> 63 == 0) return {};
    for (std::size_t at = 0; at < span.size(); ++at) {
      const auto number = __atomic_load_n(&span[at], __ATOMIC_RELAXED);
      if (row_of(number) >= rows) return no_such_row(number, places.empty() ? at : places[at], table);
    }
    return numbers_changed();
  });
}

bool is_mapped(const Table& table) {
  return std::ranges::all_of(table.shards(), [](const auto& shard) {
    return shard->place().rows == 0 || (shard->residency() != nullptr && shard->residency()->is_whole());
  });
}

void look(const Table& table, const RowNumbers& numbers, const std::function<bool()>& goes_on) {
  std::size_t all = 0;
  for (const auto& shard : table.shards()) all += shard->residency() != nullptr ? shard->residency()->stretches() : 0;
  if (numbers.size() >= all) {
    for (const auto& shard : table.shards()) {
      if (shard->residency() != nullptr) shard->residency()->look(goes_on);
    }
    return;
  }
  auto due = due_stretches(table, numbers);
  for (std::size_t part = 0; part < due.size(); ++part) {
    if (due[part].empty()) continue;
    std::ranges::sort(due[part]);
    due[part].erase(std::unique(due[part].begin(), due[part].end()), due[part].end());
    table.shard(part).residency()->look(due[part], goes_on);
  }
}

Result<Sorted> sort_out(const Table& table, const RowNumbers& numbers, bool all_are_rows) {
  Sorted sorted;
  if (all_are_rows && is_mapped(table)) return sorted;
  const auto held = hold_residency(table);
  const Layout& layout = *table.layout();
  with_numbers(numbers, [&](auto span) {
    for (std::size_t i = 0; i < span.size(); ++i) {
      const std::uint64_t row = row_of(span[i]);
      if (row >= table.info().rows) {
        sorted.missing.push_back(i);
        continue;
      }
      const std::size_t part = layout.part_of(row);
      const std::uint64_t offset = layout.parts[part].offset_of(row);
      const Residency* const residency = table.shard(part).residency();
      if (residency == nullptr || !residency->has(offset, layout.row_bytes)) sorted.cold.push_back({row, i});
    }
  });
  if (all_are_rows && !sorted.missing.empty()) return numbers_changed();
  return sorted;
}

void point_to_mapped(const Table& table, const RowNumbers& numbers, std::size_t first,
                     std::span<const std::byte*> sources) {
  const Layout& layout = *table.layout();
  with_numbers(numbers, [&](auto span) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const std::uint64_t row = row_of(span[first + i]);
      if (row >= table.info().rows) continue;
      const Layout::Part& part = layout.parts[layout.part_of(row)];
      if (part.data != nullptr) sources[i] = part.data + (row - part.first_row) * part.stride_bytes;
    }
  });
}

}  // namespace penstock::rows
