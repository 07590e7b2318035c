#include "core/completion_thread.h"
#include "core/request.h"
#include "penstock/request.h"

namespace penstock {

Ticket::Ticket() = default;
Ticket::Ticket(std::shared_ptr<core::Request> request) : request_(std::move(request)) {}
Ticket::Ticket(const Ticket&) = default;
Ticket::Ticket(Ticket&&) noexcept = default;
Ticket& Ticket::operator=(const Ticket&) = default;
Ticket& Ticket::operator=(Ticket&&) noexcept = default;
Ticket::~Ticket() = default;

bool Ticket::ended() const { return request_->ended(); }
Outcome Ticket::outcome() const { return request_->outcome(); }
std::uint64_t Ticket::bytes_done() const { return request_->bytes_done(); }

bool Ticket::wait_for(std::chrono::nanoseconds time) const {
  if (core::CompletionThread::inside_callback()) return ended();
  const TimePoint now = Clock::now();
  return request_->wait_until(time > TimePoint::max() - now ? TimePoint::max() : now + time);
}

Report Ticket::wait() const {
  if (!ended() && core::CompletionThread::inside_callback()) {
    Report report;
    report.error = Error{Code::would_deadlock, 0, "waiting inside a completion callback",
                         "submit from the callback and wait elsewhere"};
    return report;
  }
  request_->wait_until(TimePoint::max());
  return request_->report();
}

Report Ticket::report() const { return request_->report(); }
Outcome Ticket::cancel() { return request_->cancel(); }

}  // namespace penstock
