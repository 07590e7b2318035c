// co_await on a Ticket: the coroutine resumes with the Report when the request has ended.
//
//   const penstock::Report report = co_await context.submit(penstock::Direction::read, ranges).value();
//
// Thread safety: the coroutine resumes on the Context's completion thread, where it may submit and must not wait; if
// the request has already ended, it goes on at once where it is. Lifetime: the awaiter keeps the Ticket. A waiting
// coroutine must not be destroyed before its request has ended. Small requests (128 KiB and less) that nobody else
// waits for are checked once a millisecond: await many at a time, or give them a callback.
#pragma once

#include <coroutine>
#include <utility>

#include "penstock/request.h"

namespace penstock {

class TicketAwaiter {
 public:
  explicit TicketAwaiter(Ticket ticket) : ticket_(std::move(ticket)) {}

  bool await_ready() const { return ticket_.ended(); }
  void await_suspend(std::coroutine_handle<> rest) const { ticket_.then(rest); }
  Report await_resume() const { return ticket_.report(); }

 private:
  const Ticket ticket_;
};

inline TicketAwaiter operator co_await(Ticket ticket) {
  return TicketAwaiter(std::move(ticket));
}

}  // namespace penstock
