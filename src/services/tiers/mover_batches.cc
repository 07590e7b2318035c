// The Mover's part that says which units move together. Batches of small units move two at a time: while one waits for
// the disk, the other has the processor.
#include <algorithm>
#include <atomic>
#include <future>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "base/descriptors.h"
#include "services/tiers/mover_work.h"

namespace penstock::tiers {
namespace {

constexpr std::size_t most_units = 256;
constexpr std::size_t least_units = 32;  // fewer are not worth a second batch
constexpr std::uint64_t most_bytes = 32 << 20;
constexpr std::size_t batches_at_once = 2;

// How many of the first can move in any order: small ones on their way to one tier, each once. What is large moves
// alone.
std::size_t first_alike(std::span<const Task> tasks) {
  std::set<std::int64_t> units;
  for (const Task& task : tasks) {
    if (is_large(task.kind, task.size_bytes)) break;
    if (task.to != tasks.front().to || !units.insert(task.unit).second) break;
  }
  return std::max<std::size_t>(1, units.size());
}

// Each unit holds a descriptor (leases.h). The batches leave half of those that are free to the rest of the process.
std::vector<std::span<const Task>> cut(std::span<const Task> tasks) {
  const std::size_t share = (tasks.size() + batches_at_once - 1) / batches_at_once;
  const std::size_t held = std::clamp<std::size_t>(free_descriptors() / 2 / batches_at_once, 1, most_units);
  const std::size_t most = share < least_units ? held : std::min(share, held);
  std::vector<std::span<const Task>> batches;
  while (!tasks.empty()) {
    std::uint64_t bytes = 0;
    std::size_t count = 0;
    while (count < std::min(most, tasks.size()) && bytes < most_bytes) bytes += tasks[count++].size_bytes;
    batches.push_back(tasks.first(count));
    tasks = tasks.subspan(count);
  }
  return batches;
}

void take_over(MoveReport& report, MoveReport other) {
  report.units += other.units;
  report.bytes += other.bytes;
  report.resumed_bytes += other.resumed_bytes;
  report.busy += other.busy;
  report.failure_count += other.failure_count;
  std::ranges::move(other.failures, std::back_inserter(report.failures));
  report.failures.resize(std::min(report.failures.size(), most_failures));
  if (!report.error) report.error = std::move(other.error);
}

}  // namespace

bool is_large(UnitKind kind, std::uint64_t size_bytes) {
  constexpr std::uint64_t large_bytes = 4 << 20;
  return kind == UnitKind::directory || size_bytes >= large_bytes;
}

MoveReport Mover::move(std::span<const Task> tasks) {
  const TimePoint begin_time = Clock::now();
  MoveReport report;
  while (!tasks.empty() && !report.error) {
    const std::size_t count = first_alike(tasks);
    move_batches(cut(tasks.first(count)), report);
    tasks = tasks.subspan(count);
  }
  report.seconds = seconds_between(begin_time, Clock::now());
  return report;
}

void Mover::move_batches(std::span<const std::span<const Task>> batches, MoveReport& report) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> ended = false;
  const auto take_turns = [&](Mover& mover, MoveReport& own) {
    for (std::size_t i = next++; i < batches.size() && !ended; i = next++) {
      mover.move_together(batches[i], own);
      if (own.error) ended = true;
    }
  };
  const auto help = [&] {
    MoveReport own;
    if (const auto mover = create(catalog_, context_, closer_, options_)) take_turns(**mover, own);
    return own;
  };
  std::future<MoveReport> other;
  // Together they would be faster than they are allowed to.
  if (batches.size() > 1 && options_.bytes_per_second == 0) {
    try {
      other = std::async(std::launch::async, help);
    } catch (const std::system_error&) {
      // No thread is left: all of them move here.
    }
  }
  take_turns(*this, report);
  if (other.valid()) take_over(report, other.get());
}

}  // namespace penstock::tiers
