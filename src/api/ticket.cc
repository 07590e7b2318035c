#include <algorithm>

#include "core/environment.h"
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

namespace {

// Who would end it stayed with the parent of a fork.
bool is_left_behind(const core::Request& request) {
  return !request.ended() && request.environment().fork_guard.in_child();
}

// Nobody may wait for it here, or needs to.
bool waits_for_nothing(const core::Request* request) {
  if (request == nullptr || request->ended()) return true;
  return core::CompletionThread::inside_callback() || is_left_behind(*request);
}

}  // namespace

bool Ticket::ended() const {
  return !request_ || request_->ended() || is_left_behind(*request_);
}
Outcome Ticket::outcome() const {
  if (!request_) return Outcome::failed;
  return is_left_behind(*request_) ? Outcome::cancelled : request_->outcome();
}
std::uint64_t Ticket::bytes_done() const {
  return request_ ? request_->bytes_done() : 0;
}

bool Ticket::wait_for(std::chrono::nanoseconds time) const {
  if (waits_for_nothing(request_.get())) return ended();
  return request_->wait_until(time_after(Clock::now(), time));
}

bool Ticket::wait_any(std::span<const Ticket> tickets, std::chrono::nanoseconds time) {
  const auto one_ended = [&] {
    return std::ranges::any_of(tickets, [](const Ticket& ticket) { return ticket.ended(); });
  };
  if (one_ended()) return true;
  if (tickets.empty() || core::CompletionThread::inside_callback()) return false;
  // Requests that nobody works on are worked on here, for a moment each: others may end elsewhere meanwhile.
  constexpr auto moment = std::chrono::milliseconds(1);
  const TimePoint deadline = time_after(Clock::now(), time);
  do {
    const TimePoint now = Clock::now();
    if (now >= deadline) return false;
    const TimePoint until = std::min<TimePoint>(deadline, now + moment);
    const bool helped = std::any_of(tickets.begin(), tickets.end(),
                                    [&](const Ticket& ticket) { return ticket.request_->help_until(until); });
    if (!helped) tickets.front().request_->environment().ends.wait_until(until, one_ended);
  } while (!one_ended());
  return true;
}

Outcome Ticket::wait() const {
  if (!waits_for_nothing(request_.get())) request_->wait_until(TimePoint::max());
  return outcome();
}

Report Ticket::report() const {
  Report report;
  if (!request_) {
    report.outcome = Outcome::failed;
    report.error = Error{Code::invalid_argument, 0, "this Ticket has no request",
                         "use one that submit returned, and that was not moved from"};
    return report;
  }
  report = request_->report();
  if (is_left_behind(*request_)) {
    report.outcome = Outcome::cancelled;
    report.error =
        Error{Code::closed, 0, "the request belongs to the parent of a fork", "submit it again in the child"};
  }
  return report;
}
void Ticket::then(std::function<void()> call) const {
  if (!request_ || request_->environment().fork_guard.in_child()) {
    call();
  } else {
    core::Request::then(request_, std::move(call));
  }
}
Outcome Ticket::cancel() {
  return !request_ || is_left_behind(*request_) ? outcome() : request_->cancel();
}

}  // namespace penstock
