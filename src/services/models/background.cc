#include "services/models/background.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/callback.h"
#include "base/out_of_memory.h"

namespace penstock::models {
namespace {

constexpr auto turn = std::chrono::milliseconds(10);  // how soon a stop is noticed

Error cancelled() {
  return {Code::cancelled, 0, "loading was cancelled", ""};
}

}  // namespace

Status Background::start(const Ticket& beside) {
  beside_ = beside;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return system_error(error.code().value(), "start a thread", "raise the limit of threads");
  }
  return {};
}

Background::~Background() {
  stop();
  if (thread_.joinable()) thread_.join();
}

void Background::run() {
  Status status;
  for (std::size_t i = 0; status && i < steps_.size(); ++i) {
    status = or_out_of_memory([&] { return steps_[i]->run(*this); });
    steps_[i].reset();
  }
  steps_.clear();
  if (beside_) {
    while (!beside_.wait_for(turn)) {
      if (!status || stopped_.load(std::memory_order_relaxed)) beside_.cancel();
    }
  }
  finish(std::move(status));
}

Result<Ticket> Background::submit(std::span<const Range> ranges) {
  RequestOptions options{.as_opened = true};
  if (options_.deadline_seconds != 0) {
    const double left = options_.deadline_seconds - seconds_between(begun_, Clock::now());
    options.deadline_seconds = left > 0 ? left : -1;  // 0 would be the Context's
  }
  return context_.submit(Direction::read, ranges, options);
}

Status Background::await(Ticket& ticket, bool counts) {
  std::uint64_t counted = 0;
  const auto count_more = [&] {
    if (counts) count(ticket.bytes_done() - std::exchange(counted, ticket.bytes_done()));
  };
  while (!ticket.wait_for(turn)) {
    const bool beside_failed = beside_ && beside_.ended() && beside_.outcome() != Outcome::done;
    if (beside_failed || stopped_.load(std::memory_order_relaxed)) ticket.cancel();
    count_more();
  }
  count_more();
  const Report report = ticket.report();
  ticket = {};
  add(report);
  if (!report.ok()) return report.error.value_or(cancelled());
  return stopped_.load(std::memory_order_relaxed) ? Status(cancelled()) : Status();
}

void Background::add(const Report& report) {
  const std::scoped_lock lock(mutex_);
  report_.add(report);
  report_.seconds += report.seconds;
  report_.outcome = Outcome::pending;
}

void Background::finish(Status status) {
  {
    const std::scoped_lock lock(mutex_);
    report_.outcome = Outcome::done;
    // Requests that were cancelled because the one beside them failed are not what went wrong.
    const bool beside_failed = beside_ && beside_.outcome() != Outcome::done && !stopped_.load();
    if (beside_failed && !status && status.error().code == Code::cancelled) {
      report_.error.reset();
    } else if (!status) {
      report_.error = std::move(status).error();
      report_.outcome = report_.error->code == Code::cancelled   ? Outcome::cancelled
                        : report_.error->code == Code::abandoned ? Outcome::abandoned
                                                                 : Outcome::failed;
    }
    if (beside_) add_beside();
    report_.seconds = seconds_between(begun_, Clock::now());
    ended_.store(true, std::memory_order_release);
    has_ended_.notify_all();
  }
  if (!options_.on_end) return;
  std::function<void()> call;
  static_cast<void>(or_out_of_memory([&]() -> Status {
    call = [on_end = options_.on_end, report = report_] { call_back("RequestOptions::on_end", on_end, report); };
    return {};
  }));
  if (!call) {
    call_back("RequestOptions::on_end", options_.on_end, report_);
  } else if (options_.executor) {
    call_back("RequestOptions::executor", options_.executor, std::move(call));
  } else {
    call();
  }
}

void Background::add_beside() {
  Status added = or_out_of_memory([&]() -> Status {
    report_.add(beside_.report());
    return {};
  });
  const Outcome outcome = beside_.outcome();
  if (added || outcome == Outcome::done) return;
  if (!report_.error) report_.error = std::move(added).error();
  report_.outcome = std::max(report_.outcome, outcome);
}

bool Background::wait_for(std::chrono::nanoseconds time) const {
  constexpr std::chrono::nanoseconds long_enough = std::chrono::hours(24 * 365);
  if (ended()) return true;
  std::unique_lock lock(mutex_);
  return has_ended_.wait_for(lock, std::min(time, long_enough), [&] { return ended(); });
}

void Background::wait() const {
  if (ended()) return;
  std::unique_lock lock(mutex_);
  has_ended_.wait(lock, [&] { return ended(); });
}

Report Background::report() const {
  if (ended()) return report_;
  const std::scoped_lock lock(mutex_);
  return report_;
}

}  // namespace penstock::models
