// EngineQueues: a lane's Queue in each engine that it has met, what waits to be given to it, and one sleep for all.
//
// Thread safety: the lane's. Lifetime: its lane's, which is leaked rather than ended while operations are in flight.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/inbox.h"
#include "core/piece.h"
#include "core/trace.h"
#include "engine/engine.h"

namespace penstock::core {

class EngineQueues {
 public:
  // `trace` may be null.
  EngineQueues(const engine::Table& engines, const engine::QueueOptions& options, Pieces& pieces, Inbox& inbox,
               LaneTrace* trace);

  bool has(std::size_t engine) const { return queues_[engine].queue != nullptr; }
  // Makes the Queue of an engine, unless it is there.
  Status ensure(std::size_t engine) { return has(engine) ? Status() : make(engine); }
  // REQUIRES: ensure() was ok.
  void add(std::size_t engine, const engine::Op& op) { queues_[engine].batch.push_back(op); }
  // Gives the engines what was added, as far as they take it.
  void submit();
  // Takes back what no engine has seen, as far as `is_meant(cookie)` says.
  template <typename IsMeant>
  void take_back(IsMeant is_meant) {
    for (One& one : queues_) std::erase_if(one.batch, [&](const engine::Op& op) { return is_meant(op.cookie); });
  }
  // Asks an engine to end an operation that it has.
  void cancel(std::size_t engine, std::uint64_t cookie) { queues_[engine].queue->cancel(cookie); }

  std::uint32_t in_flight() const { return in_flight_; }
  std::uint64_t bytes_in_flight() const { return bytes_in_flight_; }
  // Calls `on_done(engine, Done)` for what has ended, a few at a time, so that new operations are sent soon. Sleeps
  // until there is something, the time has come, or there is news. Returns how many there were.
  template <typename OnDone>
  std::size_t collect(TimePoint until, OnDone on_done) {
    const std::size_t busy = count_busy();
    if (busy == 1) return poll(last_busy_, until, on_done);
    std::size_t found = poll_all(on_done);
    if (found != 0 || busy == 0 || until <= Clock::now()) return found;
    const auto next = sleep_on_all(std::min(until, Clock::now() + longest_sleep));
    return next ? poll(*next, std::min(until, Clock::now() + shared_sleep), on_done) : poll_all(on_done);
  }
  void clear();

 private:
  // Completions that are looked at before new operations are sent, so that the device is not idle meanwhile.
  static constexpr std::size_t done_at_once = 8;
  // Between two queues that both have work, where one of them has no event.
  static constexpr Duration shared_sleep = std::chrono::microseconds(200);
  // Engines may have deadlines of their own, which they look at when they are polled.
  static constexpr Duration longest_sleep = std::chrono::milliseconds(50);

  struct One {
    std::unique_ptr<engine::Queue> queue;
    std::vector<engine::Op> batch;  // to be given to the queue; what it did not take stays
    std::uint32_t in_flight = 0;
  };

  Status make(std::size_t engine);
  std::size_t count_busy();
  std::size_t poll_queue(std::size_t engine, TimePoint until);
  // False: no such operation was in flight.
  bool note_end(std::size_t engine, const engine::Done& done);
  // Until one of them has something; or the queue to sleep in for a moment, where that can't be told.
  std::optional<std::size_t> sleep_on_all(TimePoint until);
  template <typename OnDone>
  std::size_t poll_all(OnDone on_done) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < queues_.size(); ++i) {
      if (queues_[i].in_flight != 0) found += poll(i, TimePoint::min(), on_done);
    }
    return found;
  }
  template <typename OnDone>
  std::size_t poll(std::size_t engine, TimePoint until, OnDone on_done) {
    const std::size_t count = poll_queue(engine, until);
    for (const engine::Done& done : std::span(done_).first(count)) {
      if (note_end(engine, done)) {
        on_done(engine, done);
      } else if (done.loan != nullptr) {
        done.loan->give_back();
      }
    }
    return count;
  }

  const engine::Table& engines_;
  const engine::QueueOptions options_;
  Pieces& pieces_;
  Inbox& inbox_;
  LaneTrace* const trace_;
  std::vector<One> queues_;  // by engine
  std::vector<engine::Done> done_;
  std::vector<pollfd> events_;
  std::size_t last_busy_ = 0;
  std::uint32_t in_flight_ = 0;  // in all of them
  std::uint64_t bytes_in_flight_ = 0;
};

}  // namespace penstock::core
