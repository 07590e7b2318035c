#include "core/calls.h"

#include <algorithm>
#include <cerrno>

#include "base/bounded.h"

namespace penstock::core {

namespace {

constexpr int most_tries = 32;
constexpr std::uint32_t free_most = 16;  // queues that are kept for the next call
// So long at most, whatever a queue's idea of sleeping is.
constexpr Duration longest_turn = std::chrono::seconds(10);

Error not_asked(Code code) {
  if (code == Code::out_of_memory) {
    return {code, 0, "no thread could be started for it",
            "raise the limit of threads (`ulimit -u`), or that of the container"};
  }
  return {code, 0, "its engine did not run it", "try again"};
}

}  // namespace

Error Calls::unanswered() {
  return {Code::timed_out, 0, "its server does not answer", "try again when the server is back"};
}

// A queue for one call at a time.
struct Calls::Place {
  std::size_t engine = 0;
  std::unique_ptr<engine::Queue> queue;
  std::shared_ptr<engine::Call> call = {};  // shared with who waits for it; null: none is under way
  std::unique_ptr<Place> next = {};
  Code code = Code::ok;  // of what has ended
  int attempts = 0;

  void start(std::shared_ptr<engine::Call> made) {
    call = std::move(made);
    attempts = 0;
    submit();
    // What is held back, or can only be done by who polls, is begun.
    poll(TimePoint::min());
  }
  void submit() {
    const engine::Op op{.kind = engine::OpKind::call, .call = call.get()};
    code = Code::ok;
    if (queue->submit({&op, 1}) == 1) return;
    call = nullptr;
    code = Code::internal;
  }
  // Whether it has ended.
  bool poll(TimePoint until) {
    engine::Done done;
    if (call == nullptr) return true;
    if (queue->poll({&done, 1}, until) == 0) return false;
    const bool again = done.code != Code::ok && (done.system_error == EAGAIN || done.system_error == EINTR);
    if (again && ++attempts < most_tries) {
      submit();
      return call == nullptr;
    }
    code = done.code;
    call = nullptr;
    return true;
  }
};

Calls::Calls(std::shared_ptr<const engine::Table> engines, const Deadlines& deadlines)
    : engines_(std::move(engines)), deadlines_(deadlines) {}

Calls::~Calls() {
  if (fork_guard_.in_child()) {  // the threads of queues stayed with the parent: nothing can be waited for
    static_cast<void>(free_.release());
    static_cast<void>(away_.release());
    return;
  }
  close();
}

TimePoint Calls::patience_end() const {
  double seconds = deadlines_.stall_seconds;
  if (seconds == 0 || (deadlines_.request_seconds != 0 && deadlines_.request_seconds < seconds)) {
    seconds = deadlines_.request_seconds;
  }
  return seconds == 0 ? TimePoint::max() : time_after(Clock::now(), duration_from_seconds(seconds));
}

Result<Calls::Begun> Calls::begin(std::size_t engine, std::shared_ptr<engine::Call> call) {
  if (fork_guard_.in_child()) {  // the threads of queues stayed with the parent
    call->run();
    return Begun(nullptr, nullptr);
  }
  for (auto ended = take_ended(); ended;) {
    auto place = std::exchange(ended, std::move(ended->next));
    give_back(std::move(place));
  }
  {
    const std::scoped_lock lock(mutex_);
    if (away_count_ >= away_most) return unanswered();
  }
  auto place = take_free(engine);
  if (!place) {
    auto queue = (*engines_)[engine]->make_queue({.depth = 1, .threads = 1});
    if (!queue) return std::move(queue).error();
    place = std::make_unique<Place>(Place{engine, std::move(*queue)});
  }
  place->start(std::move(call));
  if (place->call == nullptr && place->code != Code::ok) {
    const Code code = place->code;
    leave(std::move(place));
    return not_asked(code);
  }
  return Begun(shared_from_this(), std::move(place));
}

std::unique_ptr<Calls::Place> Calls::take_free(std::size_t engine) {
  const std::scoped_lock lock(mutex_);
  for (auto* link = &free_; *link; link = &(*link)->next) {
    if ((*link)->engine != engine) continue;
    auto place = std::move(*link);
    *link = std::move(place->next);
    --free_count_;
    return place;
  }
  return nullptr;
}

void Calls::give_back(std::unique_ptr<Place> place) {
  const std::scoped_lock lock(mutex_);
  if (closed_ || free_count_ == free_most) return;
  ++free_count_;
  place->next = std::move(free_);
  free_ = std::move(place);
}

// What they were about goes without the lock: to let go of a store is a call too.
std::unique_ptr<Calls::Place> Calls::take_ended() {
  std::unique_ptr<Place> looked_at;
  {
    const std::scoped_lock lock(mutex_);
    looked_at = std::move(away_);
  }
  std::unique_ptr<Place> ended;
  while (looked_at) {
    auto place = std::exchange(looked_at, std::move(looked_at->next));
    if (place->poll(TimePoint::min())) {
      place->next = std::move(ended);
      ended = std::move(place);
      const std::scoped_lock lock(mutex_);
      if (!closed_) --away_count_;
      continue;
    }
    std::unique_lock lock(mutex_);
    if (!closed_) {
      place->next = std::move(away_);
      away_ = std::move(place);
      continue;
    }
    lock.unlock();
    keep_company(std::move(place));
  }
  return ended;
}

void Calls::leave(std::unique_ptr<Place> place) {
  if (place->call == nullptr) {
    give_back(std::move(place));
    return;
  }
  std::unique_lock lock(mutex_);
  if (!closed_) {
    place->next = std::move(away_);
    away_ = std::move(place);
    ++away_count_;
    return;
  }
  lock.unlock();
  keep_company(std::move(place));
}

// Nobody else would notice its end. Where no thread can be started, it is left behind.
void Calls::keep_company(std::unique_ptr<Place> place) const {
  Place* const left = place.release();
  static_cast<void>(leave_to_thread([engines = engines_, left] {
    const std::unique_ptr<Place> own(left);
    while (!own->poll(Clock::now() + longest_turn)) continue;
  }));
}

void Calls::close() {
  std::unique_ptr<Place> away;
  std::unique_ptr<Place> free;
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
    away_count_ = 0;
    free_count_ = 0;
    away = std::move(away_);
    free = std::move(free_);
  }
  while (away) {
    auto place = std::exchange(away, std::move(away->next));
    if (!place->poll(TimePoint::min())) keep_company(std::move(place));
  }
}

Calls::Begun::Begun(std::shared_ptr<Calls> calls, std::unique_ptr<Place> place)
    : calls_(std::move(calls)), place_(std::move(place)) {}

Calls::Begun::Begun(Begun&&) noexcept = default;

Calls::Begun::~Begun() {
  if (!place_) return;
  place_->poll(TimePoint::min());
  calls_->leave(std::move(place_));
}

Status Calls::Begun::wait_until(TimePoint time) {
  if (!place_) return {};
  while (!place_->poll(std::min(time, Clock::now() + longest_turn))) {
    if (Clock::now() >= time) return unanswered();
  }
  if (place_->code == Code::ok) return {};
  return not_asked(place_->code);
}

}  // namespace penstock::core
