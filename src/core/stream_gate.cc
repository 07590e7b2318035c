#include "core/stream_gate.h"

#include <sys/prctl.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

namespace penstock::core {

namespace {

// Between two looks at the streams: short at first, and longer the longer nothing happens.
constexpr Duration shortest_pause = std::chrono::microseconds(10);
constexpr Duration longest_pause = std::chrono::microseconds(200);
// After a round of a standing request: no pause for so long, then short ones.
constexpr Duration without_pause = std::chrono::microseconds(200);
constexpr Duration standing_pause = std::chrono::microseconds(20);
constexpr Duration with_standing_pause = std::chrono::seconds(1);
// A stream without work comes to a request within microseconds. The caller looks for so long, which is less than the
// gate's thread takes to wake up.
constexpr Duration callers_look = std::chrono::microseconds(30);

}  // namespace

StreamGate::~StreamGate() {
  close();
}

Status StreamGate::ensure_thread() {
  if (closed_) return Error{Code::closed, 0, "the Context is closing", ""};
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      return Error{Code::out_of_memory, error.code().value(),
                   std::string("start the thread that watches streams: ") + error.what(),
                   "raise the limit of threads (`ulimit -u`), or that of the container"};
    }
  }
  return {};
}

// REQUIRES: the mutex is held.
void StreamGate::note(const std::shared_ptr<Request>& request) {
  std::erase_if(ordered_, [](const auto& known) { return known.expired(); });
  ordered_.push_back(request);
}

Status StreamGate::add(std::shared_ptr<Request> request, std::function<bool()> start) {
  Waiting waiting{std::move(request), std::move(start)};
  std::unique_lock lock(mutex_);
  if (auto status = ensure_thread(); !status) return status;
  if (!waiting.request->order || waiting.request->order->holds_stream()) note(waiting.request);
  lock.unlock();
  if (waiting.request->order && !waiting.request->asks_for_ranges()) {
    const TimePoint until = Clock::now() + callers_look;
    do {
      if (look_at(waiting)) return {};
    } while (Clock::now() < until);
  }
  lock.lock();
  if (auto status = ensure_thread(); !status) return status;
  waiting_.push_back(std::move(waiting));
  changed_.notify_one();
  return {};
}

Status StreamGate::add(std::shared_ptr<StandingRequest> standing) {
  const std::scoped_lock lock(mutex_);
  if (auto status = ensure_thread(); !status) return status;
  standing_.push_back(std::move(standing));
  changed_.notify_one();
  return {};
}

void StreamGate::run() {
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns: otherwise each pause is 50 µs longer
  Duration pause = shortest_pause;
  TimePoint last_round;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closed_ || !waiting_.empty() || !standing_.empty(); });
    if (closed_) return;
    std::erase_if(standing_, [](const auto& one) { return one->has_ended(); });
    auto standing = std::exchange(standing_, {});
    auto looked_at = std::exchange(waiting_, {});
    const bool has_standing = !standing.empty();
    lock.unlock();
    bool begun = false;
    for (const auto& one : standing) begun |= look_at(*one);
    const TimePoint now = Clock::now();
    if (begun) last_round = now;
    const bool moved = std::erase_if(looked_at, [](const Waiting& waiting) { return look_at(waiting); }) != 0;
    pause = moved ? shortest_pause : std::min(longest_pause, pause + pause / 4);
    lock.lock();
    // In the order in which they came: those that were added meanwhile are younger.
    waiting_.splice(waiting_.begin(), looked_at);
    standing_.splice(standing_.begin(), standing);
    if (has_standing && now - last_round < without_pause) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else if (has_standing && now - last_round < with_standing_pause) {
      changed_.wait_for(lock, standing_pause, [this] { return closed_; });
    } else if (has_standing || !waiting_.empty()) {
      changed_.wait_for(lock, has_standing ? longest_pause : pause, [this] { return closed_; });
    }
  }
}

// A round that could not be ended, should copies not get past its stream, does not go on.
bool StreamGate::look_at(StandingRequest& standing) {
  const auto request = standing.look();
  if (!request) return false;
  try {
    const std::scoped_lock lock(mutex_);
    note(request);
  } catch (const std::bad_alloc&) {
    request->stop(Code::out_of_memory);
  }
  return true;
}

bool StreamGate::look_at(const Waiting& waiting) {
  try {
    return look_at_once(waiting);
  } catch (const std::bad_alloc&) {
    waiting.request->stop(Code::out_of_memory);
    return false;
  }
}

bool StreamGate::look_at_once(const Waiting& waiting) {
  Request& request = *waiting.request;
  if (Clock::now() >= request.deadline) request.stop(Code::timed_out);
  if (request.stop_code() == Code::ok) {
    const cuda::CuResult state = request.order->reached();
    if (state == cuda::cu_not_ready) return false;
    if (state == cuda::cu_success) return waiting.start();
    request.stop_because(cuda::Driver::get().value()->error(state, "the stream of the request has failed"));
  }
  Request::end_unstarted(waiting.request);
  return true;
}

bool StreamGate::break_all(TimePoint now, Duration patience) {
  const std::scoped_lock lock(mutex_);
  if (broken_ && now - *broken_ < patience) return false;
  bool has_some = false;
  for (const auto& known : ordered_) {
    const auto request = known.lock();
    if (!request || request->ended()) continue;
    request->stop(Code::would_deadlock);
    has_some = true;
  }
  if (has_some) broken_ = now;
  return has_some;
}

void StreamGate::close() {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    changed_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  for (const Waiting& waiting : waiting_) {
    waiting.request->stop(Code::closed);
    Request::end_unstarted(waiting.request);
  }
  waiting_.clear();
  for (const auto& standing : standing_) standing->end();
  standing_.clear();
}

}  // namespace penstock::core
