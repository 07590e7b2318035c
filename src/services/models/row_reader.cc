#include "services/models/row_reader.h"

#include <algorithm>
#include <system_error>

#include "base/callback.h"
#include "services/models/ending.h"

namespace penstock::models {
namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr auto turn = std::chrono::milliseconds(10);  // how soon a stop is noticed

std::uint64_t align_up(std::uint64_t value) {
  return (value + page_bytes - 1) / page_bytes * page_bytes;
}

std::uint64_t segment_offset(const RowJob& job, std::uint64_t row) {
  return job.offset + row * job.layout.row_bytes + job.layout.bounds().begin;
}

std::uint64_t segment_bytes(const RowJob& job, std::uint64_t rows) {
  return (rows - 1) * job.layout.row_bytes + job.layout.bounds().length;
}

Error cancelled() {
  return {Code::cancelled, 0, "loading was cancelled", ""};
}

}  // namespace

std::vector<Segment> fill_window(std::span<const RowJob> jobs, std::uint64_t window_bytes, RowCursor& cursor) {
  std::vector<Segment> segments;
  std::uint64_t used = 0;
  while (cursor.job < jobs.size()) {
    const RowJob& job = jobs[cursor.job];
    const std::uint64_t place = align_up(used) + segment_offset(job, cursor.row) % page_bytes;
    const std::uint64_t bounds = job.layout.bounds().length;
    if (place + bounds > window_bytes) break;
    const std::uint64_t fit = 1 + (window_bytes - place - bounds) / job.layout.row_bytes;
    const std::uint64_t rows = std::min(fit, job.layout.rows - cursor.row);
    segments.push_back({cursor.job, cursor.row, rows, place});
    used = place + segment_bytes(job, rows);
    cursor.row += rows;
    if (cursor.row == job.layout.rows) cursor = {cursor.job + 1, 0};
  }
  return segments;
}

Result<std::unique_ptr<RowReader>> RowReader::create(Context& context, std::vector<RowJob> jobs,
                                                     RequestOptions options) {
  std::unique_ptr<RowReader> reader(new RowReader(context, {std::move(jobs), {}, std::move(options)}));
  for (const RowJob& job : reader->work_.jobs) reader->held_.push_back(hold_memory(job.memory));
  if (Status status = reader->allocate(); !status) return std::move(status).error();
  return reader;
}

Status RowReader::start(const Ticket& beside) {
  work_.beside = beside;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return system_error(error.code().value(), "start a thread", "raise the limit of threads");
  }
  return {};
}

RowReader::~RowReader() {
  stop();
  if (thread_.joinable()) thread_.join();
}

Status RowReader::allocate() {
  std::uint64_t all = 0, least = 0;
  bool to_gpu = false;
  for (const RowJob& job : work_.jobs) {
    all += segment_bytes(job, job.layout.rows) + 2 * page_bytes;
    least = std::max(least, job.layout.bounds().length + 2 * page_bytes);
    to_gpu = to_gpu || !job.memory.domain.host_accessible();
  }
  const std::uint64_t most = std::max(least, std::min(all, window_bytes_most));
  for (Window& window : windows_) {
    // Only copies to a GPU gain from pinned memory; where the budget has none left, any will do.
    Result<Buffer> memory = context_.allocate(to_gpu ? Domain::pinned() : Domain::host(), most);
    if (!memory && to_gpu) memory = context_.allocate(Domain::host(), most);
    if (!memory) return std::move(memory).error();
    window.memory = std::move(*memory);
  }
  return {};
}

void RowReader::run() {
  Status status = read_all();
  if (work_.beside) {
    while (!work_.beside.wait_for(turn)) {
      if (!status || stopped_.load(std::memory_order_relaxed)) work_.beside.cancel();
    }
  }
  finish(status);
}

Status RowReader::read_all() {
  if (Status status = begin(windows_[0]); !status) return status;
  for (std::size_t turn_of = 0; !windows_[turn_of].segments.empty(); turn_of = 1 - turn_of) {
    Status begun = begin(windows_[1 - turn_of]);
    Status read = await(windows_[turn_of]);
    if (begun && read) read = copy_out(windows_[turn_of]);
    if (begun && read) continue;
    if (windows_[1 - turn_of].ticket) end(windows_[1 - turn_of].ticket);
    return begun ? read : begun;
  }
  return {};
}

// Nothing to begin with: no segments.
Status RowReader::begin(Window& window) {
  window.ticket = {};
  window.segments = fill_window(work_.jobs, window.memory.size_bytes(), cursor_);
  if (window.segments.empty()) return {};
  RequestOptions options;
  if (work_.options.deadline_seconds != 0) {
    const std::chrono::duration<double> past = Clock::now() - begun_;
    const double left = work_.options.deadline_seconds - past.count();
    options.deadline_seconds = left > 0 ? left : -1;  // 0 would be the Context's
  }
  std::vector<Range> ranges;
  for (const Segment& segment : window.segments) {
    const RowJob& job = work_.jobs[segment.job];
    ranges.push_back({job.store, segment_offset(job, segment.first_row),
                      window.memory.region().part(segment.place, segment_bytes(job, segment.rows))});
  }
  Result<Ticket> ticket = context_.submit(Direction::read, ranges, options);
  if (!ticket) return std::move(ticket).error();
  window.ticket = std::move(*ticket);
  return {};
}

Status RowReader::await(Window& window) {
  while (!window.ticket.wait_for(turn)) {
    const bool beside_failed = work_.beside && work_.beside.ended() && work_.beside.outcome() != Outcome::done;
    if (beside_failed || stopped_.load(std::memory_order_relaxed)) window.ticket.cancel();
  }
  const Report report = window.ticket.report();
  add(report);
  if (!report.ok()) return report.error.value_or(cancelled());
  return stopped_.load(std::memory_order_relaxed) ? Status(cancelled()) : Status();
}

Status RowReader::copy_out(const Window& window) {
  std::vector<RowsCopy> copies;
  std::uint64_t wanted_bytes = 0;
  for (const Segment& segment : window.segments) {
    add_copies(window, segment, copies);
    wanted_bytes += segment.rows * work_.jobs[segment.job].layout.wanted_row_bytes();
  }
  if (Status status = copy_rows(copies); !status) return status;
  bytes_done_.fetch_add(wanted_bytes, std::memory_order_relaxed);
  return {};
}

void RowReader::add_copies(const Window& window, const Segment& segment, std::vector<RowsCopy>& copies) const {
  const RowJob& job = work_.jobs[segment.job];
  const std::uint64_t wanted = job.layout.wanted_row_bytes();
  std::uint64_t to = segment.first_row * wanted;
  for (const Layout::Piece& piece : job.layout.pieces) {
    const std::uint64_t from = segment.place + piece.begin - job.layout.bounds().begin;
    const auto extent = [&](std::uint64_t pitch) { return (segment.rows - 1) * pitch + piece.length; };
    copies.push_back({.to = {job.memory.part(to, extent(wanted)), piece.length, wanted},
                      .from = {window.memory.region().part(from, extent(job.layout.row_bytes)), piece.length,
                               job.layout.row_bytes}});
    to += piece.length;
  }
}

void RowReader::add(const Report& report) {
  const std::scoped_lock lock(mutex_);
  report_.add(report);
  report_.seconds += report.seconds;
  report_.outcome = Outcome::pending;
}

void RowReader::finish(const Status& status) {
  Report report;
  {
    const std::scoped_lock lock(mutex_);
    report_.outcome = Outcome::done;
    // Windows that were cancelled because the request beside them failed are not what went wrong.
    const bool beside_failed = work_.beside && work_.beside.outcome() != Outcome::done && !stopped_.load();
    if (beside_failed && !status && status.error().code == Code::cancelled) {
      report_.error.reset();
    } else if (!status) {
      report_.error = status.error();
      report_.outcome = status.error().code == Code::cancelled   ? Outcome::cancelled
                        : status.error().code == Code::abandoned ? Outcome::abandoned
                                                                 : Outcome::failed;
    }
    if (work_.beside) report_.add(work_.beside.report());
    report_.seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    report = report_;
    held_.clear();
    ended_.store(true, std::memory_order_release);
    has_ended_.notify_all();
  }
  if (!work_.options.on_end) return;
  const auto call = [on_end = work_.options.on_end, report] { call_back("RequestOptions::on_end", on_end, report); };
  if (work_.options.executor) {
    call_back("RequestOptions::executor", work_.options.executor, call);
  } else {
    call();
  }
}

bool RowReader::wait_for(std::chrono::nanoseconds time) const {
  constexpr std::chrono::nanoseconds long_enough = std::chrono::hours(24 * 365);
  if (ended()) return true;
  std::unique_lock lock(mutex_);
  return has_ended_.wait_for(lock, std::min(time, long_enough), [&] { return ended(); });
}

void RowReader::wait() const {
  if (ended()) return;
  std::unique_lock lock(mutex_);
  has_ended_.wait(lock, [&] { return ended(); });
}

Report RowReader::report() const {
  if (ended()) return report_;
  const std::scoped_lock lock(mutex_);
  return report_;
}

}  // namespace penstock::models
