// CompletionQueue: submit many requests, collect their completions in one place, and wait for them in an event loop.
//
//   auto queue = penstock::CompletionQueue::create(context, {.capacity = 256}).value();
//   queue.submit({.ranges = ranges, .user_data = 7});
//   std::array<penstock::Completion, 64> done;
//   const std::size_t count = queue.wait(done, 1, std::chrono::seconds(1));
//   for (const auto& completion : std::span(done).first(count)) ...  // completion.user_data, completion.code
//
// A completion is a code and the user data of its submission. It takes no allocation; a report is made only if the
// Ticket of the request is asked for one. At most `capacity` requests are submitted and not yet collected: submit fails
// with Code::would_block beyond that, so a queue never overflows and no completion is lost. Completions come in the
// order in which requests end.
//
// Thread safety: every call from any thread; each completion goes to one caller. Lifetime: a handle; copies share one
// queue. close(), or the end of the last handle, cancels what is in flight and waits a bounded time; what was not
// collected is lost. A queue keeps its Context open. In a forked child submit fails with Code::closed, and there are no
// completions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/context.h"

namespace penstock {

namespace client {
class QueueState;
}

struct Completion {
  std::uint64_t user_data = 0;
  Code code = Code::ok;     // ok: all bytes arrived; otherwise that of Report::error
  std::uint64_t bytes = 0;  // that arrived
};

struct Submission {
  Direction direction = Direction::read;
  std::span<const Range> ranges = {};  // copied
  std::uint64_t user_data = 0;
  const RequestOptions* options = nullptr;  // null: the defaults
  // If it is not null, it is set: to cancel the request, or to get its report.
  Ticket* ticket = nullptr;
};

struct CompletionQueueOptions {
  std::size_t capacity = 1024;  // requests that are submitted and not yet collected, 1 to 2^20
};

class PENSTOCK_EXPORT CompletionQueue {
 public:
  static Result<CompletionQueue> create(const Context& context, const CompletionQueueOptions& options = {});

  // An empty queue: submit fails with Code::invalid_argument, and there are no completions.
  CompletionQueue();
  CompletionQueue(const CompletionQueue&);
  CompletionQueue(CompletionQueue&&) noexcept;
  CompletionQueue& operator=(const CompletionQueue&);
  CompletionQueue& operator=(CompletionQueue&&) noexcept;
  ~CompletionQueue();

  // Returns at once. Code::would_block if the queue is full: collect some completions first. A submission that is
  // refused, for the same reasons as by Context::submit, has no completion. Short reads of cached bytes may be complete
  // when submit returns.
  [[nodiscard]] Status submit(const Submission& submission) const;
  // Submits one after the other. Returns how many were accepted, from the first on:
  // fewer than all where the next was refused. An error if the first was.
  [[nodiscard]] Result<std::size_t> submit(std::span<const Submission> submissions) const;

  // Collects completions that are there; returns how many. Also makes progress on what is in flight.
  std::size_t poll(std::span<Completion> completions) const;
  // Waits until `min` completions were collected, everything submitted was, or the time is over; returns how many were.
  // Inside a completion callback it does not wait.
  std::size_t wait(std::span<Completion> completions, std::size_t min, std::chrono::nanoseconds timeout) const;

  // A descriptor that is readable while completions are there, for epoll, asyncio or libuv; it belongs to the queue.
  // Neither read it nor write to it: poll() resets it. From the first call on, requests complete without a thread in
  // poll() or wait(). -1 if there are no descriptors left, and for an empty queue.
  int fd() const;

  // Submitted, and not yet collected.
  std::size_t size() const;
  std::size_t capacity() const;

  // Cancels what is in flight, and waits at most Deadlines::close_seconds. Completions that are there can still be
  // collected.
  void close() const;

 private:
  std::shared_ptr<client::QueueState> state_;  // shared by the copies
};

}  // namespace penstock
