#include "services/rows/gather.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <numeric>
#include <utility>

#include "base/out_of_memory.h"
#include "penstock/gpu.h"
#include "services/rows/fill.h"
#include "services/rows/sorted.h"
#include "services/rows/turns.h"
#include "services/rows/watch.h"

namespace penstock::rows {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

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

Status check_memory(const RowNumbers& numbers) {
  const Region& memory = numbers.memory();
  const std::string bytes = std::to_string(numbers.element_bytes());
  const auto wrong = [&](const std::string& what, const std::string& hint) {
    return Error{Code::invalid_argument, 0, "numbers of rows: " + what, hint};
  };
  if (memory.size_bytes % numbers.element_bytes() != 0) {
    return wrong(std::to_string(memory.size_bytes) + " bytes are no whole numbers of " + bytes + " bytes",
                 "give a size that is a multiple of " + bytes + ", or the type that they have");
  }
  if (memory.size_bytes != 0 && memory.data == nullptr) {
    return wrong("their memory is null", "give the address of the first, or a size of 0");
  }
  if (reinterpret_cast<std::uintptr_t>(memory.data) % numbers.element_bytes() != 0) {
    return wrong("their address is no multiple of their size, " + bytes + " bytes",
                 "align them to " + bytes + " bytes, as an array of their type is");
  }
  return {};
}

// Numbers that the CPU can read.
class HostNumbers {
 public:
  static Result<HostNumbers> of(const Table& table, const RowNumbers& numbers) {
    if (table.in_child()) {
      return Error{Code::closed, 0, "the table belongs to the parent of this process",
                   "make a Context, and open the table, after the fork"};
    }
    if (Status status = check_memory(numbers); !status) return std::move(status).error();
    HostNumbers host(numbers);
    const Region& given = numbers.memory();
    if (given.domain.host_accessible() || numbers.size() == 0) return host;
    auto copied = table.take_numbers(given.size_bytes);
    if (!copied) return std::move(copied).error();
    host.copied_ = std::move(*copied);
    const Region memory = host.copied_.region().part(0, given.size_bytes);
    if (Status status = copy(memory, given); !status) return std::move(status).error();
    host.numbers_ = RowNumbers(numbers.type(), memory);
    return host;
  }
  const RowNumbers& get() const { return numbers_; }
  // Keeps what they lie in, where that is ours: lanes may use it longer than the caller waits.
  std::shared_ptr<const void> held() const {
    return copied_.size_bytes() != 0 ? hold_memory(copied_.region()) : nullptr;
  }
  // For the next. REQUIRES: nobody reads them any more.
  void give_back(const Table& table) && {
    if (copied_.size_bytes() != 0) table.give_scratch(std::move(copied_));
  }

 private:
  explicit HostNumbers(const RowNumbers& numbers) : numbers_(numbers) {}
  Buffer copied_;
  RowNumbers numbers_;
};

// Of a turn, what is filled before those of its rows are read that come straight to their places: long enough for all
// lanes, and short enough that the disk begins early.
constexpr std::uint64_t slice_bytes = 256 << 20;
// Places of cold rows between others are filled with zeros and read over: a long copy costs less than many short ones.
constexpr std::uint64_t bridged_bytes_most = 16 << 10;

// A turn whose rows are on their way.
struct Begun {
  Turn turn;
  Buffer scratch;
  Ticket by_scratch;
  std::vector<Ticket> straight;
};

// Where rows are copied from; null: they are zeros.
using RowSources = std::vector<const std::byte*>;
// In such a list: the row comes another way.
constexpr std::byte elsewhere{};

class Gather {
 public:
  Gather(const Table& table, const HostNumbers& numbers, Region memory, const GatherOptions& options, Lone lone)
      : table_(table),
        numbers_(numbers.get()),
        held_numbers_(numbers.held()),
        memory_(memory),
        options_(options),
        lone_(lone) {}

  RowsReport run() {
    if (Status status = or_out_of_memory([this] { return carry_out(); }); !status) {
      const bool all_came_home = end_reading();
      report_.outcome = Outcome::failed;
      if (!all_came_home || report_.reading.outcome == Outcome::abandoned ||
          report_.filling.outcome == Outcome::abandoned) {
        report_.outcome = Outcome::abandoned;
      } else if (status.error().code == Code::cancelled) {
        report_.outcome = Outcome::cancelled;
      }
      report_.error = told_in_rows(std::move(status).error(), table_, report_, in_place_bytes_);
    } else {
      report_.outcome = Outcome::done;
    }
    report_.seconds = seconds_since(begin_);
    return std::move(report_);
  }

 private:
  Status carry_out() {
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(numbers_.size(), table_.info().row_bytes, &bytes) || bytes != memory_.size_bytes) {
      return Error{Code::invalid_argument, 0,
                   std::to_string(numbers_.size()) + " rows of " + std::to_string(table_.info().row_bytes) +
                       " bytes don't fill memory of " + std::to_string(memory_.size_bytes),
                   "give memory of exactly their size"};
    }
    if (Status status = check_apart(); !status) return status;
    Status all_are_rows = check_numbers(table_, numbers_);
    if (!all_are_rows && !options_.zeros_for_missing) return all_are_rows;
    if (numbers_.size() == 0) return {};
    if (Status status = Watch::check_may_wait("gather"); !status) return status;
    look(table_, numbers_);
    auto sorted = sort_out(table_, numbers_, all_are_rows.ok());
    if (!sorted) return std::move(sorted).error();
    missing_ = std::move(sorted->missing);
    cold_ = std::move(sorted->cold);
    report_.missing_rows = missing_.size();
    report_.cold_rows = cold_.size();
    report_.cached_rows = numbers_.size() - missing_.size() - cold_.size();
    report_.bytes = bytes;
    if (!watch_.goes_on()) return Watch::told_to_stop();
    if (Status status = move_rows(); !status) return status;
    return table_.check_unchanged();
  }

  // Lanes look at the numbers as long as they write rows.
  Status check_apart() const {
    const Region numbers = numbers_.memory();
    const bool is_apart =
        numbers.data + numbers.size_bytes <= memory_.data || memory_.data + memory_.size_bytes <= numbers.data;
    if (is_apart || numbers.size_bytes == 0 || memory_.size_bytes == 0) return {};
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
        if (ticket) in_place_bytes_ += ticket.bytes_done();
      }
    }
    return all_came_home;
  }

  Status move_rows() {
    if (cold_.empty() && missing_.empty()) {
      const Positions all{0, numbers_.size()};
      return fill(std::make_shared<Fill>(table_.layout(), numbers_), all, {{all}}, held_numbers_);
    }
    Turns turns(table_, cold_, numbers_.size(), lone_);
    while (true) {
      if (Status status = begin_turns(turns, turns.at_once() - 1); !status) return status;
      if (begun_.empty()) return {};
      if (Status status = await(begun_.front()); !status) return status;
      // The disk must not wait for copies of what it has brought.
      if (Status status = begin_turns(turns, turns.at_once()); !status) return status;
      if (Status status = place(begun_.front()); !status) return status;
      begun_.pop_front();
    }
  }

  Status begin_turns(Turns& turns, std::size_t most) {
    while (begun_.size() < most) {
      if (!watch_.goes_on()) return Watch::told_to_stop();
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
      auto scratch = table_.take_scratch(turn.plan.scratch_bytes, Domain::host());
      if (!scratch) return std::move(scratch).error();
      begun.scratch = std::move(*scratch);
      if (Status status = submit(scratch_ranges(begun), begun.by_scratch); !status) return status;
    }
    if (turn.plan.straight_rows == 0) return {};
    const std::size_t slice = std::max<std::size_t>(1, slice_bytes / table_.info().row_bytes);
    const auto straight = straight_ranges(turn, slice);
    begun.straight.resize(straight.size());
    for (std::size_t i = 0; i < straight.size(); ++i) {
      const Positions rows{turn.rows.first + i * slice, std::min(slice, turn.rows.count - i * slice)};
      if (Status status = fill_around(rows); !status) return status;
      if (straight[i].empty()) continue;
      if (Status status = submit(straight[i], begun.straight[i]); !status) return status;
    }
    return {};
  }

  Status submit(std::span<const Range> ranges, Ticket& ticket) {
    RequestOptions request = request_options();
    // They are cold: lanes need not ask about each.
    if (table_.context().options().cache == penstock::Cache::automatic) request.cache = penstock::Cache::bypass;
    auto submitted = table_.context().submit(Direction::read, ranges, request);
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
      ranges.push_back({&table_.shard(extent.part).store(), extent.offset,
                        begun.scratch.region().part(extent.scratch_offset, extent.length)});
    }
    return ranges;
  }

  // Of each slice of the turn's rows.
  std::vector<std::vector<Range>> straight_ranges(const Turn& turn, std::size_t slice) const {
    const std::uint64_t row_bytes = table_.info().row_bytes;
    std::vector<std::vector<Range>> ranges((turn.rows.count + slice - 1) / slice);
    for (const ColdExtent& extent : turn.plan.extents) {
      if (!extent.is_straight) continue;
      const ColdRow& only = turn.cold[extent.first];
      ranges[(only.position - turn.rows.first) / slice].push_back(
          {&table_.shard(extent.part).store(), table_.layout()->parts[extent.part].offset_of(only.row),
           memory_.part(only.position * row_bytes, row_bytes)});
    }
    return ranges;
  }

  Status await(Begun& begun) {
    if (Status status = await(begun.by_scratch); !status) return status;
    for (Ticket& ticket : begun.straight) {
      const std::uint64_t bytes_before = report_.reading.bytes;
      Status status = await(ticket);
      in_place_bytes_ += report_.reading.bytes - bytes_before;
      if (!status) return status;
    }
    return {};
  }

  Status await(Ticket& ticket) {
    if (!ticket) return {};
    watch_.wait(ticket);
    const Report report = ticket.report();
    add(report_.reading, report);
    report_.read_bytes += report.extra_bytes;
    report_.extra_bytes += report.extra_bytes;
    ticket = {};
    return report.ok() ? Status() : *report.error;
  }

  // Of these rows, where those that are cold come from elsewhere.
  Result<RowSources> sources_of(const Positions& rows) const {
    RowSources sources(rows.count);
    point_to_mapped(table_, numbers_, rows.first, sources);
    const std::span missing(std::ranges::lower_bound(missing_, rows.first),
                            std::ranges::lower_bound(missing_, rows.end()));
    for (const std::uint64_t position : missing) sources[position - rows.first] = nullptr;
    const std::span cold(std::ranges::lower_bound(cold_, rows.first, {}, &ColdRow::position),
                         std::ranges::lower_bound(cold_, rows.end(), {}, &ColdRow::position));
    for (const ColdRow& each : cold) sources[each.position - rows.first] = &elsewhere;
    if (std::ranges::count(sources, nullptr) != std::ssize(missing)) return numbers_changed();
    return sources;
  }

  // All of these rows that are not cold, before those are read.
  Status fill_around(const Positions& rows) {
    auto sources = sources_of(rows);
    if (!sources) return std::move(sources).error();
    const std::vector<Positions> runs = runs_of(*sources, rows.first, bridged_bytes_most / table_.info().row_bytes);
    if (runs.empty()) return {};
    const auto bridged = static_cast<std::size_t>(std::ranges::count(*sources, &elsewhere)) - left_out(runs, rows);
    std::ranges::replace(*sources, &elsewhere, nullptr);
    return fill(std::make_shared<Fill>(table_.layout(), std::move(*sources)), rows, runs, nullptr, bridged);
  }

  // What is in its place when the turn has been read stays as it is.
  Status place(Begun& begun) {
    const Turn& turn = begun.turn;
    const bool are_straight = turn.plan.straight_rows != 0;
    if (are_straight && turn.plan.scratch_bytes == 0) return {};
    auto sources = are_straight ? Result(RowSources(turn.rows.count, &elsewhere)) : sources_of(turn.rows);
    if (!sources) return std::move(sources).error();
    for_each_in_scratch(table_, turn.plan, turn.cold, [&](std::uint64_t position, std::uint64_t offset) {
      (*sources)[position - turn.rows.first] = begun.scratch.data() + offset;
    });
    const std::shared_ptr<const void> scratch =
        begun.scratch.size_bytes() != 0 ? hold_memory(begun.scratch.region()) : nullptr;
    const std::vector<Positions> runs = runs_of(*sources, turn.rows.first, 0);
    Status status = fill(std::make_shared<Fill>(table_.layout(), std::move(*sources)), turn.rows, runs, scratch);
    if (status && begun.scratch.size_bytes() != 0) table_.give_scratch(std::move(begun.scratch));
    return status;
  }

  // Of sources of rows from the position `first` on, those that are not elsewhere, and up to `bridged` between them
  // that are.
  static std::vector<Positions> runs_of(const RowSources& sources, std::size_t first, std::size_t bridged) {
    std::vector<Positions> runs;
    for (std::size_t at = 0; at < sources.size(); ++at) {
      if (sources[at] == &elsewhere) continue;
      if (runs.empty() || first + at - runs.back().end() > bridged) runs.push_back({first + at, 0});
      runs.back().count = first + at + 1 - runs.back().first;
    }
    return runs;
  }

  // Rows that belong to no run.
  static std::size_t left_out(std::span<const Positions> runs, const Positions& rows) {
    std::size_t count = rows.count;
    for (const Positions& run : runs) count -= run.count;
    return count;
  }

  // Runs of the rows that `fill` makes, by the lanes: straight into host memory, through pinned slots to a GPU. What is
  // `held` stays as long as they may use it. `bridged` of the rows are read over.
  Status fill(std::shared_ptr<const Fill> fill, const Positions& rows, std::span<const Positions> runs,
              std::shared_ptr<const void> held, std::size_t bridged = 0) {
    const std::uint64_t row_bytes = table_.info().row_bytes;
    auto store = table_.context().open(
        Recipe{.name = "rows of " + table_.layout()->name,
               .size_bytes = rows.count * row_bytes,
               .make = [fill = std::move(fill), held = std::move(held)](
                           std::uint64_t offset, std::span<std::byte> memory) { return fill->make(offset, memory); }});
    if (!store) return std::move(store).error();
    std::vector<Range> ranges;
    ranges.reserve(runs.size());
    for (const Positions& run : runs) {
      ranges.push_back(
          {&*store, (run.first - rows.first) * row_bytes, memory_.part(run.first * row_bytes, run.count * row_bytes)});
    }
    const Report report = watch_.transfer(table_.context(), Direction::read, ranges, request_options());
    add(report_.filling, report);
    const std::size_t placed = rows.count - left_out(runs, rows);
    const double share = static_cast<double>(bridged) / static_cast<double>(placed);
    in_place_bytes_ += report.bytes - static_cast<std::uint64_t>(share * static_cast<double>(report.bytes));
    if (!report.ok()) return *report.error;
    return {};
  }

  static void add(Report& sum, const Report& report) {
    const double seconds = sum.seconds + report.seconds;
    if (sum.outcome == Outcome::pending) {
      sum = report;
    } else {
      sum.add(report);
    }
    sum.seconds = seconds;
  }

  RequestOptions request_options() const {
    RequestOptions request;
    request.deadline_seconds = options_.deadline_seconds;
    // What is left of it; none left has passed.
    if (options_.deadline_seconds > 0) {
      const double left = options_.deadline_seconds - seconds_since(begin_);
      request.deadline_seconds = left > 0 ? left : -1;
    }
    return request;
  }

  const Table& table_;
  const RowNumbers numbers_;
  const std::shared_ptr<const void> held_numbers_;
  const Region memory_;
  const GatherOptions& options_;
  const Lone lone_;
  Watch watch_{options_.keep_going};
  const Clock::time_point begin_ = Clock::now();
  RowsReport report_;
  std::vector<ColdRow> cold_;           // by position
  std::vector<std::uint64_t> missing_;  // ascending
  std::deque<Begun> begun_;             // the first is awaited, then placed while the others are read
  std::uint64_t in_place_bytes_ = 0;
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
  auto host = HostNumbers::of(table, numbers);
  if (!host) return failed(std::move(host).error());
  RowsReport report = Gather(table, *host, memory, options, lone).run();
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
  const auto begin = Clock::now();
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
  RequestOptions request;
  request.deadline_seconds = options.deadline_seconds;
  RowsReport report;
  report.reading = Watch(options.keep_going).transfer(table.context(), Direction::read, ranges, request);
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
  report.seconds = seconds_since(begin);
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
