#include <vector>

#include "base/clock.h"
#include "base/out_of_memory.h"
#include "client/backend.h"
#include "penstock/request.h"

namespace penstock {

Ticket::Ticket() = default;
Ticket::Ticket(std::shared_ptr<client::PendingRequest> request) : request_(std::move(request)) {}
Ticket::Ticket(const Ticket&) = default;
Ticket::Ticket(Ticket&&) noexcept = default;
Ticket& Ticket::operator=(const Ticket&) = default;
Ticket& Ticket::operator=(Ticket&&) noexcept = default;
Ticket::~Ticket() = default;

bool Ticket::ended() const {
  return outcome() != Outcome::pending;
}

Outcome Ticket::outcome() const {
  return request_ ? request_->poll() : Outcome::failed;
}

std::uint64_t Ticket::bytes_done() const {
  return request_ ? request_->poll_bytes() : 0;
}

bool Ticket::wait_for(std::chrono::nanoseconds time) const {
  if (!request_ || time <= time.zero()) return ended();
  return request_->wait(time_after(Clock::now(), time));
}

bool Ticket::wait_any(std::span<const Ticket> tickets, std::chrono::nanoseconds time) {
  if (tickets.empty()) return false;
  const auto one_ended = or_out_of_memory([&]() -> Result<bool> {
    std::vector<client::PendingRequest*> requests;
    requests.reserve(tickets.size());
    for (const Ticket& ticket : tickets) {
      if (!ticket.request_) return true;
      requests.push_back(ticket.request_.get());
    }
    return requests.front()->wait_any(requests, time_after(Clock::now(), std::max(time, time.zero())));
  });
  return one_ended && *one_ended;
}

Outcome Ticket::wait() const {
  if (request_) static_cast<void>(request_->wait(TimePoint::max()));
  return outcome();
}

Report Ticket::report() const {
  if (request_) return request_->make_report();
  Report report;
  report.outcome = Outcome::failed;
  report.error = Error{Code::invalid_argument, 0, "this Ticket has no request",
                       "use one that submit returned, and that was not moved from"};
  return report;
}

void Ticket::then(std::function<void()> call) const {
  if (request_) {
    request_->call_at_end(request_, std::move(call));
  } else {
    call();
  }
}

Outcome Ticket::cancel() {
  return request_ ? request_->cancel_and_wait() : Outcome::failed;
}

}  // namespace penstock
