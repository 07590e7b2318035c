// The Mover's part that says which units move together. Batches of small units move three at a time: while one waits
// for the disk, the others have the processor.
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

constexpr std::size_t most_units = 512;
constexpr std::size_t least_units = 32;  // fewer are not worth a batch of their own
constexpr std::uint64_t most_bytes = 32 << 20;
constexpr std::size_t batches_at_once = 3;
constexpr std::size_t opened_at_work = 20;  // descriptors of a batch that copies or compares

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

// Each unit holds a descriptor (leases.h). The batches leave half of those that are free to the rest of the process,
// and to deleted files that are about to be closed (closer.h).
std::vector<std::span<const Task>> cut(std::span<const Task> tasks) {
  const std::size_t wanted = std::clamp<std::size_t>(tasks.size() / least_units, 1, batches_at_once);
  const std::size_t share = (tasks.size() + wanted - 1) / wanted;
  const std::size_t free = free_descriptors();
  const std::size_t spare = free - std::min(free, batches_at_once * opened_at_work);
  const std::size_t held = std::clamp<std::size_t>(spare / 2 / batches_at_once, 1, most_units);
  const std::size_t most = std::min(share, held);
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
  std::vector<std::future<MoveReport>> others;
  // Together they would be faster than they are allowed to.
  if (options_.bytes_per_second == 0) {
    try {
      for (std::size_t i = 1; i < std::min(batches.size(), batches_at_once); ++i) {
        others.push_back(std::async(std::launch::async, help));
      }
    } catch (const std::system_error&) {
      // No thread is left: those that run move all of them.
    }
  }
  take_turns(*this, report);
  for (std::future<MoveReport>& other : others) take_over(report, other.get());
}

}  // namespace penstock::tiers
