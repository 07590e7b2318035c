// LaneTrace: the list of what one lane did. It only grows, up to its limit, and what is in it never changes, so readers
// need no lock. TraceHub: the lists of all lanes of a Context.
//
// Thread safety: one thread at a time adds to a LaneTrace; everything else from any thread. Lifetime: the hub keeps the
// lists, also those of lanes that have ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "penstock/trace.h"

namespace penstock::core {

class LaneTrace {
 public:
  LaneTrace(std::uint32_t lane, std::uint32_t capacity, TimePoint origin);

  // Waits that follow each other, with nothing that ended in between, are put together.
  void add_wait(TraceKind kind, TimePoint begin, TimePoint end);
  void add_transfer(TraceKind kind, TimePoint begin, TimePoint end, std::uint64_t bytes, Route route);

  // Adds those that ended later than `since_seconds`.
  void read(double since_seconds, Trace& trace) const;

 private:
  void append(const TraceEvent& event);
  void end_wait();

  const std::uint32_t lane_;
  const std::uint32_t capacity_;
  const TimePoint origin_;
  std::vector<TraceEvent> events_;       // never grows, so that others may look while it is filled
  std::atomic<std::uint32_t> count_{0};  // those before it are complete
  std::atomic<std::uint64_t> dropped_{0};
  std::optional<TraceEvent> wait_;  // may still grow; the writer's alone
};

class TraceHub {
 public:
  // 0: nothing is kept.
  explicit TraceHub(std::uint32_t events_per_lane) : events_per_lane_(events_per_lane) {}

  // Null where nothing is kept.
  LaneTrace* add_lane();
  Trace snapshot(double since_seconds) const;

 private:
  const std::uint32_t events_per_lane_;
  const TimePoint origin_ = Clock::now();
  mutable std::mutex mutex_;  // guards the list, which lanes don't look at
  std::vector<std::unique_ptr<LaneTrace>> lanes_;
};

}  // namespace penstock::core
