#include "services/rows/filling.h"

#include <algorithm>
#include <string>
#include <utility>

namespace penstock::rows {
namespace {

// Places of cold rows between others are filled with zeros and read over: a long copy costs less than many short ones.
constexpr std::uint64_t bridged_bytes_most = 16 << 10;

// As much as a lane takes at once.
constexpr std::uint64_t copied_here_bytes_most = 1 << 20;

// Of the rows from `first` on, those that have a source.
std::vector<Positions> runs_with_source(std::span<const std::byte* const> sources, std::size_t first) {
  std::vector<Positions> runs;
  for (std::size_t at = 0; at < sources.size(); ++at) {
    if (sources[at] == nullptr) continue;
    if (runs.empty() || runs.back().end() != first + at) runs.push_back({first + at, 0});
    ++runs.back().count;
  }
  return runs;
}

std::size_t count_of(std::span<const Positions> runs) {
  std::size_t count = 0;
  for (const Positions& run : runs) count += run.count;
  return count;
}

std::span<const ColdRow> cold_of(const Positions& rows, const Sorted& sorted) {
  return {std::ranges::lower_bound(sorted.cold, rows.first, {}, &ColdRow::position),
          std::ranges::lower_bound(sorted.cold, rows.end(), {}, &ColdRow::position)};
}

std::span<const std::uint64_t> missing_of(const Positions& rows, const Sorted& sorted) {
  return {std::ranges::lower_bound(sorted.missing, rows.first), std::ranges::lower_bound(sorted.missing, rows.end())};
}

}  // namespace

std::vector<Positions> runs_around(const Positions& rows, std::span<const ColdRow> cold, std::size_t bridged) {
  std::vector<Positions> runs;
  const auto add = [&](std::size_t first, std::size_t end) {
    if (first == end) return;
    if (runs.empty() || first - runs.back().end() > bridged) runs.push_back({first, 0});
    runs.back().count = end - runs.back().first;
  };
  std::size_t first = rows.first;
  for (const ColdRow& each : cold) {
    add(first, each.position);
    first = each.position + 1;
  }
  add(first, rows.end());
  return runs;
}

Status Filling::all() {
  const Positions rows{0, errand_.numbers.size()};
  return fill(std::make_unique<Fill>(errand_.table.layout(), errand_.numbers), rows, {{rows}}, errand_.held_numbers);
}

Status Filling::around_cold(const Positions& rows, const Sorted& sorted) {
  const std::span<const ColdRow> cold = cold_of(rows, sorted);
  const std::vector<Positions> runs = runs_around(rows, cold, bridged_bytes_most / errand_.row_bytes());
  if (runs.empty()) return {};
  auto sources = sources_of(rows, sorted);
  if (!sources) return std::move(sources).error();
  const std::size_t left_out = rows.count - count_of(runs);
  return fill(std::make_unique<Fill>(errand_.table.layout(), std::move(*sources)), rows, runs, nullptr,
              cold.size() - left_out);
}

Status Filling::from_scratch(const Turn& turn, const Region& scratch, const Sorted& sorted) {
  const bool others_are_there = turn.plan.straight_rows != 0;
  if (others_are_there && turn.plan.scratch_bytes == 0) return {};
  auto sources = others_are_there ? Result(Sources(turn.rows.count)) : sources_of(turn.rows, sorted);
  if (!sources) return std::move(sources).error();
  for_each_in_scratch(errand_.table, turn.plan, turn.cold, [&](std::uint64_t position, std::uint64_t offset) {
    (*sources)[position - turn.rows.first] = scratch.data + offset;
  });
  const std::vector<Positions> runs =
      others_are_there ? runs_with_source(*sources, turn.rows.first) : std::vector{turn.rows};
  return fill(std::make_unique<Fill>(errand_.table.layout(), std::move(*sources)), turn.rows, runs,
              scratch.size_bytes != 0 ? hold_memory(scratch) : nullptr);
}

Result<Filling::Sources> Filling::sources_of(const Positions& rows, const Sorted& sorted) const {
  Sources sources(rows.count);
  point_to_mapped(errand_.table, errand_.numbers, rows.first, sources);
  const std::span<const std::uint64_t> missing = missing_of(rows, sorted);
  const std::span<const ColdRow> cold = cold_of(rows, sorted);
  for (const std::uint64_t position : missing) sources[position - rows.first] = nullptr;
  for (const ColdRow& each : cold) sources[each.position - rows.first] = nullptr;
  const auto without = static_cast<std::size_t>(std::ranges::count(sources, nullptr));
  if (without != missing.size() + cold.size()) return numbers_changed();
  return sources;
}

bool Filling::is_filled_here(std::span<const Positions> runs) const {
  const Region& memory = errand_.memory;
  const bool may_be = count_of(runs) * errand_.row_bytes() <= copied_here_bytes_most &&
                      memory.domain.host_accessible() && memory.data != nullptr && memory.size_bytes != 0 &&
                      errand_.deadline_seconds() == 0;
  // A request refuses memory that can't be, or is partly a Buffer's.
  return may_be && hold_memory(memory) == hold_memory(memory.part(memory.size_bytes - 1, 1));
}

// By the caller, who would wait for a lane for longer than for the copies.
Status Filling::fill_here(const Fill& fill, const Positions& rows, std::span<const Positions> runs,
                          std::size_t bridged) {
  const std::uint64_t row_bytes = errand_.row_bytes();
  const auto held = hold_memory(errand_.memory);
  const auto begin = Errand::Clock::now();
  Report report;
  for (const Positions& run : runs) {
    const Region memory = errand_.memory.part(run.first * row_bytes, run.count * row_bytes);
    Status made = fill.make((run.first - rows.first) * row_bytes, {memory.data, memory.size_bytes});
    if (!made) return made;
    report.bytes += memory.size_bytes;
  }
  report.outcome = Outcome::done;
  report.seconds = std::chrono::duration<double>(Errand::Clock::now() - begin).count();
  report.cpu_seconds = report.seconds;
  report.routes[static_cast<std::size_t>(Route::made)] = report.bytes;
  report.engine = "made";
  report.reason = "by the caller";
  errand_.table.context().count_mapped(report.bytes, report.seconds);
  add(report_, report);
  in_place_bytes_ += report.bytes - bridged * row_bytes;
  return {};
}

Status Filling::fill(std::unique_ptr<const Fill> fill, const Positions& rows, std::span<const Positions> runs,
                     std::shared_ptr<const void> held, std::size_t bridged) {
  const std::uint64_t row_bytes = errand_.row_bytes();
  const Context& context = errand_.table.context();
  if (is_filled_here(runs)) return fill_here(*fill, rows, runs, bridged);
  auto store = context.open(
      Recipe{.name = "rows of " + errand_.table.layout()->name,
             .size_bytes = rows.count * row_bytes,
             .make = [fill = std::shared_ptr(std::move(fill)), held = std::move(held)](
                         std::uint64_t offset, std::span<std::byte> memory) { return fill->make(offset, memory); }});
  if (!store) return std::move(store).error();
  std::vector<Range> ranges;
  ranges.reserve(runs.size());
  for (const Positions& run : runs) {
    ranges.push_back({&*store, (run.first - rows.first) * row_bytes,
                      errand_.memory.part(run.first * row_bytes, run.count * row_bytes)});
  }
  const Report report = errand_.watch.transfer(context, Direction::read, ranges, errand_.request_options());
  add(report_, report);
  const double read_over = static_cast<double>(bridged) / static_cast<double>(count_of(runs));
  in_place_bytes_ += report.bytes - static_cast<std::uint64_t>(read_over * static_cast<double>(report.bytes));
  if (!report.ok()) return *report.error;
  return {};
}

}  // namespace penstock::rows
