// What the Ticket of a request asks for (penstock::Ticket).
#include <algorithm>
#include <array>
#include <span>

#include "base/futex.h"
#include "base/spin.h"
#include "core/environment.h"
#include "core/lane.h"
#include "core/request.h"

namespace penstock::core {

// A thread in wait_any. Requests that end increment the word.
struct Request::AnyWait {
  std::atomic<std::uint32_t> ended{0};
};

namespace {

// How long a thread may drive one worker while other requests may end elsewhere.
constexpr Duration moment = std::chrono::milliseconds(1);

}  // namespace

bool Request::is_left_behind() const {
  return !ended() && environment_->fork_guard.in_child();
}

void Request::make_progress() const {
  if (!ended() && !is_left_behind() && !CompletionThread::inside_callback()) {
    static_cast<void>(help_until(TimePoint::min()));
  }
}

Outcome Request::poll() {
  make_progress();
  return is_left_behind() ? Outcome::cancelled : outcome();
}

std::uint64_t Request::poll_bytes() {
  make_progress();
  return bytes_done();
}

bool Request::wait(TimePoint until) {
  if (ended() || is_left_behind()) return true;
  if (CompletionThread::inside_callback()) return false;
  return wait_until(until);
}

Report Request::make_report() {
  Report made = report();
  if (is_left_behind()) {
    made.outcome = Outcome::cancelled;
    made.error = Error{Code::closed, 0, "the request belongs to the parent of a fork", "submit it again in the child"};
  }
  return made;
}

void Request::call_at_end(std::shared_ptr<client::PendingRequest> self, std::function<void()> call) {
  if (environment_->fork_guard.in_child()) {
    call();
  } else {
    then(std::static_pointer_cast<Request>(std::move(self)), std::move(call));
  }
}

void Request::request_cancel() {
  if (!ended() && !is_left_behind()) stop(Code::cancelled);
}

Outcome Request::cancel_and_wait() {
  return is_left_behind() ? Outcome::cancelled : cancel();
}

void Request::announce_to_any_wait() {
  AnyWait* const waiting = any_wait_.exchange(nullptr, std::memory_order_seq_cst);
  if (waiting == nullptr) return;
  waiting->ended.fetch_add(1, std::memory_order_release);
  // Its owner may be gone by now: the call only uses the address.
  futex_wake_all(waiting->ended);
}

// Registers with every request once, so that a wake-up costs the same for one request and for thousands.
bool Request::wait_any(std::span<client::PendingRequest* const> requests, TimePoint until) {
  AnyWait waiting;
  std::array<Lane*, 16> lanes{};  // that callers have to drive
  std::size_t lane_count = 0;
  std::uint32_t registered = 0;
  bool others_work = false;  // on some of the requests
  bool is_shared = false;    // another thread waits for one of them too, and has its registration
  bool one_ended = false;
  for (client::PendingRequest* const each : requests) {
    auto& request = static_cast<Request&>(*each);
    one_ended = request.ended() || request.is_left_behind();
    if (one_ended) break;
    AnyWait* before = nullptr;
    const bool is_mine = request.any_wait_.compare_exchange_strong(before, &waiting, std::memory_order_seq_cst);
    if (is_mine) ++registered;
    is_shared |= !is_mine && before != &waiting;
    one_ended = request.ended();
    if (one_ended) break;
    Lane* const lane = request.is_run_by_callers() ? request.parts[0].lane.get() : nullptr;
    const auto known = std::span(lanes).first(lane_count);
    if (std::ranges::find(known, lane) != known.end()) continue;
    if (lane != nullptr && lane_count < lanes.size()) {
      lanes[lane_count++] = lane;
    } else {
      others_work = true;
    }
  }
  const auto ended_in = [&] {
    return waiting.ended.load(std::memory_order_acquire) != 0 ||
           (is_shared && std::ranges::any_of(requests, [](const client::PendingRequest* each) {
              return static_cast<const Request*>(each)->ended();
            }));
  };
  const bool may_block = !others_work && !is_shared && lane_count == 1;
  while (!one_ended && !CompletionThread::inside_callback()) {
    const TimePoint now = Clock::now();
    const TimePoint turn_end = std::min<TimePoint>(until, now + moment);
    bool helped = false;
    for (Lane* const lane : std::span(lanes).first(lane_count)) helped |= lane->try_step(may_block ? until : turn_end);
    one_ended = ended_in();
    if (one_ended || now >= until) break;
    if (!helped) futex_wait_until(waiting.ended, 0, lane_count == 0 && !is_shared ? until : turn_end);
    one_ended = ended_in();
  }
  // A request that has ended has taken its registration, and increments the word once it has.
  std::uint32_t taken = registered;
  for (client::PendingRequest* const each : requests) {
    if (taken == 0) break;
    AnyWait* own = &waiting;
    auto& any_wait = static_cast<Request*>(each)->any_wait_;
    if (any_wait.compare_exchange_strong(own, nullptr, std::memory_order_seq_cst)) --taken;
  }
  while (waiting.ended.load(std::memory_order_acquire) != taken) relax_processor();
  return one_ended;
}

}  // namespace penstock::core
