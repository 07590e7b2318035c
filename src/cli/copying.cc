#include "copying.h"

#include <algorithm>
#include <array>

#include "interrupt.h"

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

std::uint64_t window_size(const Source& source) {
  return std::clamp<std::uint64_t>(source.size_bytes().value_or(copy_window_bytes), 1, copy_window_bytes);
}

}  // namespace

Status fill_gpu(const CopyJob& job) {
  Result<Buffer> window = job.context.allocate(Domain::host(), window_size(job.source));
  if (!window.ok()) return window.error();
  for (std::size_t done = 0; done < job.memory->size_bytes;) {
    if (interrupted()) return interrupted_error();
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
  Total total;
  std::array<Buffer, 2> windows;
  for (Buffer& window : windows) {
    Result<Buffer> buffer = job.context.allocate(job.domain, window_size(job.source));
    if (!buffer.ok()) return total.fail(buffer.error()), total.report();
    window = std::move(*buffer);
  }

  Result<std::uint64_t> filled = job.source.fill(windows[0].region());
  for (std::size_t turn = 0; filled.ok() && *filled != 0 && !interrupted(); ++turn) {
    const Region memory = windows[turn % 2].region().part(0, *filled);
    const std::uint64_t before = total.report().bytes;
    const Range range{.store = job.destination, .offset = job.offset + before, .memory = memory};
    Result<Ticket> ticket = job.context.submit(Direction::write, {&range, 1});
    if (!ticket.ok()) return total.fail(ticket.error()), total.report();
    if (job.checksum) job.checksum->add({memory.data, memory.size_bytes});
    filled = job.source.fill(windows[(turn + 1) % 2].region());
    total.add(await(std::move(*ticket), [&](std::uint64_t bytes) { progress.update(before + bytes); }));
    if (!total.report().ok()) return total.report();
    progress.update(total.report().bytes);
  }
  if (interrupted()) filled = interrupted_error();
  if (!filled.ok()) total.fail(filled.error());
  return total.report();
}

Report write_memory(const CopyJob& job, Progress& progress) {
  const Range range{.store = job.destination, .offset = job.offset, .memory = *job.memory};
  Result<Ticket> ticket = job.context.submit(Direction::write, {&range, 1});
  if (!ticket.ok()) return {.outcome = Outcome::failed, .error = ticket.error()};
  return await(std::move(*ticket), [&](std::uint64_t bytes) { progress.update(bytes); });
}

}  // namespace penstock::cli
