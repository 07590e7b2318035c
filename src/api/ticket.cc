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

bool has_ended(const core::Request* request) {
  return request == nullptr || request->ended() || is_left_behind(*request);
}

// Nobody may wait for it here, or needs to.
bool waits_for_nothing(const core::Request* request) {
  return has_ended(request) || core::CompletionThread::inside_callback();
}

// A thread that polls makes progress on what no other thread works on, as one that waits does.
void make_progress(const core::Request* request) {
  if (!waits_for_nothing(request)) static_cast<void>(request->help_until(TimePoint::min()));
}

}  // namespace

bool Ticket::ended() const {
  make_progress(request_.get());
  return has_ended(request_.get());
}
Outcome Ticket::outcome() const {
  make_progress(request_.get());
  if (!request_) return Outcome::failed;
  return is_left_behind(*request_) ? Outcome::cancelled : request_->outcome();
}
std::uint64_t Ticket::bytes_done() const {
  make_progress(request_.get());
  return request_ ? request_->bytes_done() : 0;
}

bool Ticket::wait_for(std::chrono::nanoseconds time) const {
  if (time <= time.zero() || waits_for_nothing(request_.get())) return ended();
  return request_->wait_until(time_after(Clock::now(), time));
}

bool Ticket::wait_any(std::span<const Ticket> tickets, std::chrono::nanoseconds time) {
  const auto one_ended = [&] {
    return std::ranges::any_of(tickets, [](const Ticket& ticket) { return has_ended(ticket.request_.get()); });
  };
  if (one_ended()) return true;
  if (tickets.empty() || core::CompletionThread::inside_callback()) return false;
  // Requests that nobody works on are worked on here, for a moment each: others may end elsewhere meanwhile.
  constexpr auto moment = std::chrono::milliseconds(1);
  const TimePoint deadline = time_after(Clock::now(), time);
  do {
    const TimePoint now = Clock::now();
    const TimePoint until = std::min<TimePoint>(deadline, now + moment);
    const bool helped = std::any_of(tickets.begin(), tickets.end(),
                                    [&](const Ticket& ticket) { return ticket.request_->help_until(until); });
    if (now >= deadline) return one_ended();
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
