#include "services/rows/watch.h"

#include <utility>

#include "base/callback.h"
#include "base/runs_callback.h"

namespace penstock::rows {
namespace {

constexpr std::chrono::milliseconds between_questions(50);
// What the calling thread moves by itself, which costs less than to wait for another. A GPU may be busy with other
// work.
bool is_short(std::span<const Range> ranges) {
  constexpr std::uint64_t short_bytes = 128 << 10;
  return ranges.size() == 1 && ranges.front().memory.size_bytes <= short_bytes &&
         ranges.front().memory.domain.host_accessible();
}

}  // namespace

bool Watch::goes_on() {
  if (!keep_going_ || stopped_) return !stopped_;
  const auto now = std::chrono::steady_clock::now();
  if (now - asked_ < between_questions) return true;
  stopped_ = !call_back("keep_going", keep_going_);
  asked_ = std::chrono::steady_clock::now();
  return !stopped_;
}

Status Watch::check_may_wait(const std::string& verb) {
  if (!runs_callback) return {};
  return Error{Code::would_deadlock, 0, verb + " waits inside a callback of a request",
               verb + " on a thread of your own"};
}

Error Watch::told_to_stop() {
  return {Code::cancelled, 0, "the caller does not want to go on", "call it again"};
}

void Watch::end(Ticket& ticket) {
  while (!ticket.ended()) ticket.cancel();  // on a starved machine one may not be enough
}

void Watch::wait(Ticket& ticket) {
  if (!keep_going_) {
    ticket.wait();
    return;
  }
  while (!ticket.wait_for(between_questions)) {
    if (goes_on()) continue;
    end(ticket);
  }
}

Report Watch::transfer(const Context& context, Direction direction, std::span<const Range> ranges,
                       const RequestOptions& options) {
  if (!keep_going_ || is_short(ranges)) {
    return context.transfer(direction, ranges, options);
  }
  auto ticket = context.submit(direction, ranges, options);
  if (!ticket) {
    Report report;
    report.outcome = Outcome::failed;
    report.error = std::move(ticket).error();
    return report;
  }
  wait(*ticket);
  return ticket->report();
}

}  // namespace penstock::rows
