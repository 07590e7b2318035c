#include "penstock/completion_queue.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "api/session.h"
#include "base/out_of_memory.h"
#include "base/runs_callback.h"
#include "client/completion_port.h"

namespace penstock {

namespace client {

// What the copies of a CompletionQueue share.
class QueueState {
 public:
  QueueState(std::shared_ptr<Session> session, std::size_t capacity)
      : session_(std::move(session)), port_(std::make_shared<CompletionPort>(capacity)) {}
  ~QueueState() { close(); }
  QueueState(const QueueState&) = delete;
  QueueState& operator=(const QueueState&) = delete;

  Backend& backend() const { return *session_->backend; }
  // A mutex of the parent may be locked for ever in a forked child.
  bool is_in_child() const { return backend().in_forked_child(); }
  CompletionPort& port() const { return *port_; }

  Status submit(const Submission& submission) const {
    if (auto status = backend().usable(); !status) return status;
    const auto place = port_->reserve(submission.user_data);
    if (!place) return place.error();
    auto status = or_out_of_memory([&] { return backend().submit(port_, *place, submission); });
    if (!status) port_->release(*place);
    return status;
  }

  std::size_t collect(std::span<Completion> completions, std::size_t min, TimePoint deadline) const {
    // While other threads work on requests too, this one looks after them now and then.
    constexpr Duration turn = std::chrono::microseconds(200);
    std::size_t taken = port_->take(completions);
    min = std::min(min, completions.size());
    if (runs_callback) return taken;
    // Even if some were there: a caller that only polls is the one that makes progress.
    static_cast<void>(backend().progress(TimePoint::min()));
    taken += port_->take(completions.subspan(taken));
    while (taken < min && port_->size() != 0) {
      const TimePoint now = Clock::now();
      if (now >= deadline) break;
      const TimePoint turn_end = std::min<TimePoint>(deadline, now + turn);
      if (!backend().progress(port_->has_others() ? turn_end : deadline)) {
        port_->sleep_until(port_->has_others() ? deadline : turn_end);
      }
      taken += port_->take(completions.subspan(taken));
    }
    return taken;
  }

  void close() const {
    if (is_in_child()) return;
    port_->close();
    if (runs_callback) return;
    const TimePoint deadline =
        time_after(Clock::now(), duration_from_seconds(backend().options().deadlines.close_seconds));
    while (port_->in_flight() != 0 && Clock::now() < deadline) {
      constexpr Duration turn = std::chrono::milliseconds(1);
      if (!backend().progress(Clock::now() + turn)) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

 private:
  const std::shared_ptr<Session> session_;      // shared with the Context
  const std::shared_ptr<CompletionPort> port_;  // shared with the requests in flight
};

}  // namespace client

CompletionQueue::CompletionQueue() = default;
CompletionQueue::CompletionQueue(const CompletionQueue&) = default;
CompletionQueue::CompletionQueue(CompletionQueue&&) noexcept = default;
CompletionQueue& CompletionQueue::operator=(const CompletionQueue&) = default;
CompletionQueue& CompletionQueue::operator=(CompletionQueue&&) noexcept = default;
CompletionQueue::~CompletionQueue() = default;

Result<CompletionQueue> CompletionQueue::create(const Context& context, const CompletionQueueOptions& options) {
  constexpr std::size_t max_capacity = std::size_t{1} << 20;
  if (options.capacity == 0 || options.capacity > max_capacity) {
    return Error{Code::invalid_argument, 0, "the capacity of a CompletionQueue is " + std::to_string(options.capacity),
                 "choose from 1 to 1048576"};
  }
  const auto& session = client::Access::of(context);
  if (!session) {
    return Error{Code::invalid_argument, 0, "this Context is empty", "use one that Context::create returned"};
  }
  return or_out_of_memory([&]() -> Result<CompletionQueue> {
    if (auto status = session->backend->usable(); !status) return std::move(status).error();
    CompletionQueue queue;
    queue.state_ = std::make_shared<client::QueueState>(session, options.capacity);
    return queue;
  });
}

Status CompletionQueue::submit(const Submission& submission) const {
  if (state_) return state_->submit(submission);
  return Error{Code::invalid_argument, 0, "this CompletionQueue is empty", "use one that create returned"};
}

Result<std::size_t> CompletionQueue::submit(std::span<const Submission> submissions) const {
  std::size_t accepted = 0;
  for (const Submission& submission : submissions) {
    auto status = submit(submission);
    if (!status && accepted == 0) return std::move(status).error();
    if (!status) break;
    ++accepted;
  }
  return accepted;
}

std::size_t CompletionQueue::poll(std::span<Completion> completions) const {
  return wait(completions, 0, std::chrono::nanoseconds(0));
}

std::size_t CompletionQueue::wait(std::span<Completion> completions, std::size_t min,
                                  std::chrono::nanoseconds timeout) const {
  if (!state_ || state_->is_in_child()) return 0;
  const TimePoint deadline = timeout > timeout.zero() ? time_after(Clock::now(), timeout) : TimePoint::min();
  return state_->collect(completions, min, deadline);
}

int CompletionQueue::fd() const {
  return state_ && !state_->is_in_child() ? state_->port().descriptor() : -1;
}

std::size_t CompletionQueue::size() const {
  return state_ && !state_->is_in_child() ? state_->port().size() : 0;
}

std::size_t CompletionQueue::capacity() const {
  return state_ ? state_->port().capacity() : 0;
}

void CompletionQueue::close() const {
  if (state_) state_->close();
}

}  // namespace penstock
