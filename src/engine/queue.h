// Queue: one lane's submission and completion context in an Engine.
//
// Nothing here throws: where there is no memory for an operation, it comes back with Code::out_of_memory. Should a
// Queue throw std::bad_alloc after all, every request of its lane ends with that.
//
// Thread safety: one thread at a time uses a Queue, except for wake(), which any thread may call.
// Lifetime: destroyed only when nothing is in flight on it; a Queue with operations that never come home is leaked.
#pragma once

#include <cstddef>
#include <span>

#include "base/clock.h"
#include "engine/op.h"

namespace penstock::engine {

class Queue {
 public:
  virtual ~Queue() = default;

  // Takes ops from the front and returns how many; fewer than given is back-pressure, not an error. An op that can't
  // be started is taken and comes back from poll with its code. The span need not outlive the call. Ops may be held
  // back until the next poll, which must follow.
  virtual std::size_t submit(std::span<const Op> ops) = 0;

  // Collects completions, in any order. Sleeps until there is at least one, wake() was called, or the deadline has
  // passed (a deadline in the past: never sleeps); returns how many were written.
  virtual std::size_t poll(std::span<Done> done, TimePoint deadline) = 0;

  // A descriptor that can be read from when poll would find something, for who waits for several queues at once; -1
  // where there is none, and the queue has to be polled now and then. Asked for anew before each wait, after a poll
  // that found nothing.
  virtual int event() { return -1; }

  // Ends a poll that sleeps, or the next one that would.
  virtual void wake() = 0;

  // Best effort. The operation still comes back from poll, exactly once: whole, or with Code::cancelled.
  virtual void cancel(std::uint64_t cookie) = 0;
};

}  // namespace penstock::engine
