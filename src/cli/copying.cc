#include "copying.h"

#include <algorithm>
#include <array>
#include <vector>

#include "interrupt.h"
#include "penstock/machine.h"
#include "penstock/window_ring.h"
#include "transfer.h"

namespace penstock::cli {

namespace {

// Adds one window's report to the whole.
class Total {
 public:
  void add(const Report& window) {
    report_.add(window);
    // The limit of the whole is the one under which most of the time was spent.
    double& seconds = limit_seconds_[static_cast<std::size_t>(window.limit)];
    seconds += window.seconds;
    if (seconds > limit_seconds_[static_cast<std::size_t>(report_.limit)]) report_.limit = window.limit;
  }
  void fail(const Error& error) {
    report_.outcome = Outcome::failed;
    report_.error = error;
  }
  Report& report() { return report_; }

 private:
  Report report_{.outcome = Outcome::done};
  std::array<double, 4> limit_seconds_{};
};

std::uint64_t window_size(const CopyJob& job) {
  const std::uint64_t most = copy_window_bytes();
  return std::clamp<std::uint64_t>(job.source.size_bytes().value_or(most), 1, most);
}

// Between two steps that can't be stopped themselves.
Status check(const CopyJob& job) {
  if (interrupted()) return interrupted_error();
  if (!job.deadline.passed()) return {};
  return Error{.code = Code::timed_out, .message = "the deadline passed", .hint = "allow more time with --deadline"};
}

// Makes the destination read as zeros where the source has a hole, with a hole where that can be.
Status clear(const CopyJob& job, Extent hole) {
  constexpr std::uint64_t step_bytes = 1 << 30;
  constexpr std::uint64_t block_bytes = 64 << 10;  // of any file system, at most
  const std::uint64_t end = std::min(job.offset + hole.end(), job.old_end);
  const auto zero = [&](std::uint64_t from, std::uint64_t to) {
    return from < to ? job.context.zero(*job.destination, from, to - from) : Report{.outcome = Outcome::done};
  };
  for (std::uint64_t begin = job.offset + hole.offset; begin < end;) {
    if (Status may_go_on = check(job); !may_go_on.ok()) return may_go_on;
    const std::uint64_t step_end = std::min(end, (begin / step_bytes + 1) * step_bytes);
    const std::uint64_t first = (begin + block_bytes - 1) / block_bytes * block_bytes;
    const std::uint64_t last = step_end / block_bytes * block_bytes;
    Report report{.outcome = Outcome::failed, .error = Error{.code = Code::unsupported}};
    // A disk need not read as zeros where it was deallocated.
    if (job.destination->info().kind == StoreKind::file && first < last) {
      report = job.context.deallocate(*job.destination, first, last - first);
      if (report.ok()) report = zero(begin, first);
      if (report.ok()) report = zero(last, step_end);
    }
    if (!report.ok() && report.error->code == Code::unsupported) report = zero(begin, step_end);
    if (!report.ok()) return *report.error;
    begin = step_end;
  }
  return {};
}

// The runs of data that follow each other in `memory`, as ranges of the destination.
std::vector<Range> ranges_of(const CopyJob& job, const std::vector<Extent>& runs, Region memory) {
  std::vector<Range> ranges;
  std::uint64_t used = 0;
  for (const Extent& run : runs) {
    ranges.push_back(
        {.store = job.destination, .offset = job.offset + run.offset, .memory = memory.part(used, run.size_bytes)});
    used += run.size_bytes;
  }
  return ranges;
}

// The holes before and between runs of data, beginning at `position`.
std::vector<Extent> holes_before(std::uint64_t position, const std::vector<Extent>& runs) {
  std::vector<Extent> holes;
  for (const Extent& run : runs) {
    holes.push_back({position, run.offset - position});
    position = run.end();
  }
  return holes;
}

bool has_to_clear(const CopyJob& job, const std::vector<Extent>& holes) {
  return std::ranges::any_of(
      holes, [&](const Extent& hole) { return hole.size_bytes != 0 && job.offset + hole.offset < job.old_end; });
}

Status clear(const CopyJob& job, const std::vector<Extent>& holes) {
  for (const Extent& hole : holes) {
    if (Status cleared = clear(job, hole); !cleared.ok()) return cleared;
  }
  return {};
}

// Each run of data with the hole before it.
Status add(Checksum& checksum, const std::vector<Extent>& holes, const std::vector<Range>& data) {
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (Status added = add_zeros(checksum, holes[i].size_bytes); !added.ok()) return added;
    checksum.add({data[i].memory.data, data[i].memory.size_bytes});
  }
  return {};
}

// What the source gives, on its way by a window at a time.
class Copying {
 public:
  Copying(const CopyJob& job, Progress& progress) : job_(job), progress_(progress) {}

  // Fills a window and starts to write it; a null Ticket at the end of the source.
  Result<Ticket> begin(const Window& window) {
    if (Status may_go_on = check(job_); !may_go_on.ok()) return may_go_on.error();
    if (at_end_) return Ticket();
    const Result<std::vector<Extent>> filled = job_.source.fill_data(window.memory);
    if (!filled.ok()) return filled.error();
    at_end_ = filled->empty();
    if (at_end_) return Ticket();
    const std::vector<Extent> holes = holes_before(position_, *filled);
    const std::vector<Range> data = ranges_of(job_, *filled, window.memory);
    position_ = filled->back().end();
    written_[window.number] = {filled->front().offset, position_ - filled->front().offset};
    if (job_.checksum) {
      if (Status added = add(*job_.checksum, holes, data); !added.ok()) return added.error();
    }
    // While no bytes beside them are on their way: the two may share a page.
    if (has_to_clear(job_, holes)) {
      if (last_) static_cast<void>(cli::await(last_));
      if (Status cleared = clear(job_, holes); !cleared.ok()) return cleared.error();
    }
    Result<Ticket> ticket =
        job_.context.submit(Direction::write, data, {.deadline_seconds = job_.deadline.request_seconds()});
    if (ticket.ok()) last_ = *ticket;
    return ticket;
  }

  Status await(Ticket& ticket, const Window& window) {
    const Extent& extent = written_[window.number];
    total_.add(cli::await(std::move(ticket), [&](std::uint64_t bytes) { progress_.update(extent.offset + bytes); }));
    if (!total_.report().ok()) return *total_.report().error;
    progress_.update(extent.end());
    return {};
  }

  // Once all has been written: what the source has a hole for at its end.
  Status finish() {
    if (Status may_go_on = check(job_); !may_go_on.ok()) return may_go_on;
    const Extent rest{position_, job_.source.size_bytes().value_or(position_) - position_};
    if (Status cleared = clear(job_, rest); !cleared.ok()) return cleared;
    return job_.checksum ? add_zeros(*job_.checksum, rest.size_bytes) : Status();
  }

  Report report(const Status& status) {
    if (!status.ok() && total_.report().ok()) total_.fail(status.error());
    return total_.report();
  }

 private:
  const CopyJob& job_;
  Progress& progress_;
  Total total_;
  std::uint64_t position_ = 0;       // in the source
  std::array<Extent, 2> written_{};  // of the source, by window
  Ticket last_;
  bool at_end_ = false;
};

}  // namespace

std::uint64_t copy_window_bytes() {
  constexpr std::uint64_t least = 1 << 20, most = 64 << 20;
  return std::clamp(Machine::available_memory_bytes() / 8 / least * least, least, most);
}

Status add_zeros(Checksum& checksum, std::uint64_t size_bytes) {
  static constexpr std::array<std::byte, 1 << 20> zeros{};
  while (size_bytes != 0) {
    if (interrupted()) return interrupted_error();
    const std::uint64_t bytes = std::min<std::uint64_t>(size_bytes, zeros.size());
    checksum.add({zeros.data(), bytes});
    size_bytes -= bytes;
  }
  return {};
}

Status fill_gpu(const CopyJob& job) {
  Result<Buffer> window = job.context.allocate(Domain::host(), window_size(job));
  if (!window.ok()) return window.error();
  for (std::size_t done = 0; done < job.memory->size_bytes;) {
    if (Status may_go_on = check(job); !may_go_on.ok()) return may_go_on;
    const Result<std::uint64_t> filled = job.source.fill(window->region());
    if (!filled.ok()) return filled.error();
    const Region piece = window->region().part(0, *filled);
    if (Status copied = copy(job.memory->part(done, *filled), piece); !copied.ok()) return copied.error();
    if (job.checksum) job.checksum->add({piece.data, piece.size_bytes});
    done += *filled;
  }
  return {};
}

Report copy_windows(const CopyJob& job, Progress& progress) {
  Copying copying(job, progress);
  Result<WindowRing> ring = WindowRing::create(job.context, {.size_bytes = window_size(job), .domain = job.domain});
  if (!ring.ok()) return copying.report(ring.error());
  const auto begin = [&](const Window& window) { return copying.begin(window); };
  const auto await_one = [&](Ticket& ticket, const Window& window) { return copying.await(ticket, window); };
  for (;;) {
    const Result<std::optional<Window>> window = ring->next(begin, await_one);
    if (!window.ok()) return copying.report(window.error());
    if (!*window) return copying.report(copying.finish());
  }
}

Report write_memory(const CopyJob& job, Progress& progress) {
  const Range range{.store = job.destination, .offset = job.offset, .memory = *job.memory};
  Result<Ticket> ticket =
      job.context.submit(Direction::write, {&range, 1}, {.deadline_seconds = job.deadline.request_seconds()});
  if (!ticket.ok()) return {.outcome = Outcome::failed, .error = ticket.error()};
  return await(std::move(*ticket), [&](std::uint64_t bytes) { progress.update(bytes); });
}

}  // namespace penstock::cli
