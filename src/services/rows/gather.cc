#include "services/rows/gather.h"

#include <algorithm>
#include <deque>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/out_of_memory.h"
#include "services/rows/errand.h"
#include "services/rows/filling.h"
#include "services/rows/host_numbers.h"
#include "services/rows/sorted.h"
#include "services/rows/turns.h"

namespace penstock::rows {
namespace {

std::string name_of(const Table& table) {
  const std::string& first = table.shards().front()->store().info().name;
  const std::size_t others = table.shards().size() - 1;
  return others == 0 ? first : first + " and " + std::to_string(others) + " joined to it";
}

// Of what made a gather stop; empty: nothing but an error.
std::string_view told_why(Code code) {
  switch (code) {
    case Code::timed_out:
      return "the deadline passed";
    case Code::cancelled:
      return "the caller does not want to go on";
    case Code::abandoned:
      return "operations did not come back in time";
    default:
      return "";
  }
}

// Where a gather was stopped: how far it came, and not how far the one of its requests did that was under way.
Error told_in_rows(Error error, const Table& table, const RowsReport& report, std::uint64_t bytes_in_place) {
  const std::string_view why = told_why(error.code);
  if (why.empty() || report.reading.failure_count + report.filling.failure_count != 0) return error;
  // Of some there may be a part.
  const std::uint64_t row_bytes = table.info().row_bytes;
  error.message = std::string(why) + "; about " + std::to_string(bytes_in_place / row_bytes) + " of " +
                  std::to_string(report.bytes / row_bytes) + " rows of " + name_of(table) + " were there";
  return error;
}

// Of a turn, what is filled before those of its rows are read that come straight to their places: long enough for all
// lanes, and short enough that the disk begins early.
constexpr std::uint64_t slice_bytes = 256 << 20;
// Where there is no scratch memory for as many cold rows as may be read at once, fewer are, down to this.
constexpr std::uint64_t least_scratch_bytes = 1 << 20;

// A turn whose rows are on their way.
struct Begun {
  Turn turn;
  Buffer scratch;
  Ticket by_scratch;
  std::vector<Ticket> straight;
};

class Gather {
 public:
  Gather(Errand& errand, Lone lone) : errand_(errand), lone_(lone) {}

  RowsReport run() {
    const Status status = or_out_of_memory([this] { return carry_out(); });
    const bool all_came_home = status || end_reading();
    report_.filling = filling_.report();
    report_.outcome = Outcome::done;
    if (!status) {
      report_.outcome = Outcome::failed;
      if (!all_came_home || report_.reading.outcome == Outcome::abandoned ||
          report_.filling.outcome == Outcome::abandoned) {
        report_.outcome = Outcome::abandoned;
      } else if (status.error().code == Code::cancelled) {
        report_.outcome = Outcome::cancelled;
      }
      report_.error =
          told_in_rows(status.error(), errand_.table, report_, read_in_place_bytes_ + filling_.in_place_bytes());
    }
    report_.seconds = errand_.seconds();
    return std::move(report_);
  }

 private:
  Status carry_out() {
    const Table& table = errand_.table;
    const RowNumbers& numbers = errand_.numbers;
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(numbers.size(), errand_.row_bytes(), &bytes) || bytes != errand_.memory.size_bytes) {
      return Error{Code::invalid_argument, 0,
                   std::to_string(numbers.size()) + " rows of " + std::to_string(errand_.row_bytes()) +
                       " bytes don't fill memory of " + std::to_string(errand_.memory.size_bytes),
                   "give memory of exactly their size"};
    }
    if (Status status = check_apart(); !status) return status;
    Status all_are_rows = check_numbers(table, numbers);
    if (!all_are_rows && !errand_.options.zeros_for_missing) return all_are_rows;
    if (numbers.size() == 0) return {};
    if (Status status = Watch::check_may_wait("gather"); !status) return status;
    look(table, numbers, [this] { return errand_.goes_on(); });
    auto sorted = sort_out(table, numbers, all_are_rows.ok());
    if (!sorted) return std::move(sorted).error();
    sorted_ = std::move(*sorted);
    report_.missing_rows = sorted_.missing.size();
    report_.cold_rows = sorted_.cold.size();
    report_.cached_rows = numbers.size() - sorted_.missing.size() - sorted_.cold.size();
    report_.bytes = bytes;
    if (!errand_.watch.goes_on()) return Watch::told_to_stop();
    if (Status status = move_rows(); !status) return status;
    return table.check_unchanged();
  }

  // Lanes look at the numbers as long as they write rows.
  Status check_apart() const {
    const Region numbers = errand_.numbers.memory();
    const Region& memory = errand_.memory;
    const bool is_apart =
        numbers.data + numbers.size_bytes <= memory.data || memory.data + memory.size_bytes <= numbers.data;
    if (is_apart || numbers.size_bytes == 0 || memory.size_bytes == 0) return {};
    return Error{Code::invalid_argument, 0, "the memory for the rows overlaps their numbers", "give other memory"};
  }

  // What still reads may write to the caller's memory: it ends before the gather does. False: some was abandoned.
  bool end_reading() {
    bool all_came_home = true;
    const auto end = [&](Ticket& ticket) {
      if (!ticket) return;
      Watch::end(ticket);
      if (ticket.outcome() == Outcome::abandoned) all_came_home = false;
    };
    for (Begun& begun : begun_) {
      end(begun.by_scratch);
      std::ranges::for_each(begun.straight, end);
    }
    for (const Begun& begun : begun_) {
      for (const Ticket& ticket : begun.straight) {
        if (ticket) read_in_place_bytes_ += ticket.bytes_done();
      }
    }
    return all_came_home;
  }

  Status move_rows() {
    if (sorted_.cold.empty() && sorted_.missing.empty()) return filling_.all();
    for (std::uint64_t room = errand_.table.options().scratch_bytes;; room /= 4) {
      Status status = move_in_turns(Turns(errand_.table, sorted_.cold, errand_.numbers.size(), lone_, room));
      const bool has_less_memory = !status && status.error().code == Code::out_of_memory;
      if (!has_less_memory || has_begun_ || room <= least_scratch_bytes) return status;
      begun_.clear();
      report_.read_bytes = report_.extra_bytes = 0;
    }
  }

  Status move_in_turns(Turns turns) {
    while (true) {
      if (Status status = begin_turns(turns, turns.at_once() - 1); !status) return status;
      if (begun_.empty()) return {};
      Begun& first = begun_.front();
      if (Status status = await(first); !status) return status;
      // The disk must not wait for copies of what it has brought.
      if (Status status = begin_turns(turns, turns.at_once()); !status) return status;
      if (Status status = filling_.from_scratch(first.turn, first.scratch.region(), sorted_); !status) return status;
      if (first.scratch.size_bytes() != 0) errand_.table.give_scratch(std::move(first.scratch));
      begun_.pop_front();
    }
  }

  Status begin_turns(Turns& turns, std::size_t most) {
    while (begun_.size() < most) {
      if (!errand_.watch.goes_on()) return Watch::told_to_stop();
      Turn turn = turns.next();
      if (turn.rows.count == 0) return {};
      begun_.push_back({.turn = std::move(turn)});
      if (Status status = begin(begun_.back()); !status) return status;
    }
    return {};
  }

  // Rows are read to their places when what lies around them has been filled.
  Status begin(Begun& begun) {
    const Turn& turn = begun.turn;
    report_.read_bytes += turn.plan.read_bytes;
    report_.extra_bytes += turn.plan.read_bytes - turn.plan.wanted_bytes;
    if (turn.plan.scratch_bytes != 0) {
      auto scratch = errand_.table.take_scratch(turn.plan.scratch_bytes, Domain::host());
      if (!scratch) return std::move(scratch).error();
      begun.scratch = std::move(*scratch);
      if (Status status = submit(scratch_ranges(begun), begun.by_scratch); !status) return status;
    }
    if (turn.plan.straight_rows == 0) return {};
    const std::size_t slice = std::max<std::size_t>(1, slice_bytes / errand_.row_bytes());
    const auto straight = straight_ranges(turn, slice);
    begun.straight.resize(straight.size());
    for (std::size_t i = 0; i < straight.size(); ++i) {
      const Positions rows{turn.rows.first + i * slice, std::min(slice, turn.rows.count - i * slice)};
      if (Status status = filling_.around_cold(rows, sorted_); !status) return status;
      if (straight[i].empty()) continue;
      if (Status status = submit(straight[i], begun.straight[i]); !status) return status;
    }
    return {};
  }

  Status submit(std::span<const Range> ranges, Ticket& ticket) {
    has_begun_ = true;
    auto submitted = errand_.table.context().submit(Direction::read, ranges, errand_.request_options());
    if (!submitted) return std::move(submitted).error();
    ticket = std::move(*submitted);
    return {};
  }

  std::vector<Range> scratch_ranges(const Begun& begun) const {
    const ColdPlan& plan = begun.turn.plan;
    std::vector<Range> ranges;
    ranges.reserve(plan.extents.size() - plan.straight_rows);
    for (const ColdExtent& extent : plan.extents) {
      if (extent.is_straight) continue;
      ranges.push_back({&errand_.table.shard(extent.part).store(), extent.offset,
                        begun.scratch.region().part(extent.scratch_offset, extent.length)});
    }
    return ranges;
  }

  // Of each slice of the turn's rows.
  std::vector<std::vector<Range>> straight_ranges(const Turn& turn, std::size_t slice) const {
    const Table& table = errand_.table;
    const std::uint64_t row_bytes = errand_.row_bytes();
    std::vector<std::vector<Range>> ranges((turn.rows.count + slice - 1) / slice);
    for (const ColdExtent& extent : turn.plan.extents) {
      if (!extent.is_straight) continue;
      const ColdRow& only = turn.cold[extent.first];
      ranges[(only.position - turn.rows.first) / slice].push_back(
          {&table.shard(extent.part).store(), table.layout()->parts[extent.part].offset_of(only.row),
           errand_.memory.part(only.position * row_bytes, row_bytes)});
    }
    return ranges;
  }

  Status await(Begun& begun) {
    const std::uint64_t through_cache = bytes_through_cache();
    const std::uint64_t all = report_.reading.bytes;
    if (Status status = await_tickets(begun); !status) return status;
    const bool are_cached_now = report_.reading.bytes - all == bytes_through_cache() - through_cache;
    if (are_cached_now) note_read(begun.turn);
    return {};
  }

  std::uint64_t bytes_through_cache() const {
    std::uint64_t bytes = 0;
    for (const Route route : {Route::cached, Route::buffered, Route::cached_staged, Route::buffered_staged}) {
      bytes += report_.reading.routes[static_cast<std::size_t>(route)];
    }
    return bytes;
  }

  // The next gather copies them from the mapping.
  void note_read(const Turn& turn) const {
    const Table& table = errand_.table;
    std::vector<Residency::Span> spans;
    for (std::size_t i = 0; i < turn.plan.extents.size(); ++i) {
      const ColdExtent& extent = turn.plan.extents[i];
      const std::uint64_t offset = extent.is_straight
                                       ? table.layout()->parts[extent.part].offset_of(turn.cold[extent.first].row)
                                       : extent.offset;
      spans.push_back({offset, extent.is_straight ? errand_.row_bytes() : extent.length});
      const bool is_last_of_part = i + 1 == turn.plan.extents.size() || turn.plan.extents[i + 1].part != extent.part;
      if (!is_last_of_part) continue;
      if (Residency* const residency = table.shard(extent.part).residency()) residency->note_read(spans);
      spans.clear();
    }
  }

  Status await_tickets(Begun& begun) {
    if (Status status = await(begun.by_scratch); !status) return status;
    for (Ticket& ticket : begun.straight) {
      const std::uint64_t bytes_before = report_.reading.bytes;
      Status status = await(ticket);
      read_in_place_bytes_ += report_.reading.bytes - bytes_before;
      if (!status) return status;
    }
    return {};
  }

  Status await(Ticket& ticket) {
    if (!ticket) return {};
    errand_.watch.wait(ticket);
    const Report report = ticket.report();
    add(report_.reading, report);
    report_.read_bytes += report.extra_bytes;
    report_.extra_bytes += report.extra_bytes;
    ticket = {};
    return report.ok() ? Status() : *report.error;
  }

  Errand& errand_;
  const Lone lone_;
  Filling filling_{errand_};
  Sorted sorted_;
  std::deque<Begun> begun_;  // the first is awaited, then placed while the others are read
  bool has_begun_ = false;   // to read
  std::uint64_t read_in_place_bytes_ = 0;
  RowsReport report_;
};

RowsReport failed(Error error) {
  RowsReport report;
  report.outcome = Outcome::failed;
  report.error = std::move(error);
  return report;
}

}  // namespace

RowsReport gather(const Table& table, const RowNumbers& numbers, Region memory, const GatherOptions& options,
                  Lone lone) {
  const auto begin = Errand::Clock::now();
  auto host = HostNumbers::of(table, numbers);
  if (!host) return failed(std::move(host).error());
  Errand errand{table, host->get(), host->held(), memory, options, begin};
  RowsReport report = Gather(errand, lone).run();
  if (report.ok()) std::move(*host).give_back(table);
  return report;
}

Result<MappedFill> mapped_fill(const Table& table, const RowNumbers& numbers, const GatherOptions& options) {
  Status all_are_rows = check_numbers(table, numbers);
  if (!all_are_rows && !options.zeros_for_missing) return std::move(all_are_rows).error();
  look(table, numbers);
  const auto sorted = sort_out(table, numbers, all_are_rows.ok());
  if (!sorted) return sorted.error();
  if (!sorted->cold.empty()) return MappedFill{};
  if (sorted->missing.empty()) return MappedFill{std::make_unique<Fill>(table.layout(), numbers), 0};
  std::vector<const std::byte*> sources(numbers.size());
  point_to_mapped(table, numbers, 0, sources);
  if (std::ranges::count(sources, nullptr) != std::ssize(sorted->missing)) return numbers_changed();
  return MappedFill{std::make_unique<Fill>(table.layout(), std::move(sources)), sorted->missing.size()};
}

RowsReport read_rows(const Table& table, Interval rows, Region memory, const GatherOptions& options) {
  Errand errand{table, RowNumbers(RowNumbers::Type::i64, {}), nullptr, memory, options, Errand::Clock::now()};
  const Layout& layout = *table.layout();
  if (rows.begin > rows.end || rows.end > table.info().rows) {
    return failed({Code::out_of_range, 0,
                   "rows from " + std::to_string(rows.begin) + " to " + std::to_string(rows.end) +
                       " reach past the end of a table of " + std::to_string(table.info().rows),
                   "ask for less"});
  }
  const std::uint64_t count = rows.end - rows.begin;
  const bool is_dense = std::ranges::all_of(
      layout.parts, [&](const Layout::Part& part) { return part.stride_bytes == layout.row_bytes; });
  const bool fits = memory.size_bytes / layout.row_bytes == count && memory.size_bytes % layout.row_bytes == 0;
  if (!fits) {
    return failed({Code::invalid_argument, 0,
                   std::to_string(count) + " rows of " + std::to_string(layout.row_bytes) +
                       " bytes don't fill memory of " + std::to_string(memory.size_bytes),
                   "give memory of exactly their size"});
  }
  if (!is_dense || count == 0 || table.in_child()) {
    std::vector<std::uint64_t> numbers(count);
    std::iota(numbers.begin(), numbers.end(), rows.begin);
    return gather(table, numbers, memory, options);
  }
  if (Status status = Watch::check_may_wait("gather"); !status) return failed(std::move(status).error());
  std::vector<Range> ranges;
  for (std::uint64_t row = rows.begin; row < rows.end;) {
    const std::size_t part = layout.part_of(row);
    const Layout::Part& about = layout.parts[part];
    const std::uint64_t end = std::min(rows.end, about.first_row + table.shard(part).place().rows);
    const std::uint64_t in_memory = (row - rows.begin) * layout.row_bytes;
    ranges.push_back({&table.shard(part).store(), about.offset + (row - about.first_row) * layout.row_bytes,
                      memory.part(in_memory, (end - row) * layout.row_bytes)});
    row = end;
  }
  RowsReport report;
  report.reading = errand.watch.transfer(table.context(), Direction::read, ranges, errand.request_options());
  report.outcome = report.reading.outcome;
  report.bytes = memory.size_bytes;
  if (!report.ok()) report.error = told_in_rows(*report.reading.error, table, report, report.reading.bytes);
  const RouteBytes& routes = report.reading.routes;
  const std::uint64_t cached_bytes =
      routes[static_cast<std::size_t>(Route::cached)] + routes[static_cast<std::size_t>(Route::cached_staged)];
  // Which bytes these were is not told, so all but one row are taken to be cached as a whole, or not at all.
  report.cached_rows = cached_bytes / layout.row_bytes;
  report.cold_rows = count - report.cached_rows;
  report.read_bytes = report.reading.bytes - cached_bytes + report.reading.extra_bytes;
  report.extra_bytes = report.reading.extra_bytes;
  if (report.ok()) {
    if (Status status = table.check_unchanged(); !status) {
      report.outcome = Outcome::failed;
      report.error = std::move(status).error();
    }
  }
  report.seconds = errand.seconds();
  return report;
}

Result<std::uint64_t> prefetch(const Table& table, const RowNumbers& given) {
  auto host = HostNumbers::of(table, given);
  if (!host) return std::move(host).error();
  const RowNumbers& numbers = host->get();
  if (Status status = check_numbers(table, numbers); !status) return std::move(status).error();
  if (Status status = table.check_unchanged(); !status) return std::move(status).error();
  look(table, numbers);
  auto sorted = sort_out(table, numbers, true);
  if (!sorted) return std::move(sorted).error();
  std::vector<ColdRow> cold = std::move(sorted->cold);
  std::ranges::sort(cold);
  const ColdPlan plan = plan_cold(table, cold, Lone::straight);
  if (plan.extents.empty()) return std::uint64_t{0};
  std::vector<Range> ranges;
  ranges.reserve(plan.extents.size());
  for (const ColdExtent& extent : plan.extents) {
    ranges.push_back({&table.shard(extent.part).store(), extent.offset, Region::host(nullptr, extent.length)});
  }
  auto started = table.context().prefetch(ranges);
  for (const auto& shard : table.shards()) {
    if (shard->residency() != nullptr) shard->residency()->forget();
  }
  return started;
}

}  // namespace penstock::rows
