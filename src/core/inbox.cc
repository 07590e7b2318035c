#include "core/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/spin.h"
#include "core/request.h"

namespace penstock::core {

namespace {

// Never dereferenced: stands in the place of mail where no more is taken.
Part* const closed_mark = reinterpret_cast<Part*>(std::uintptr_t{1});  // NOLINT(performance-no-int-to-ptr)

}  // namespace

bool Inbox::post(Part& part) {
  if (!post_quietly(part)) return false;
  wake();
  return true;
}

bool Inbox::post_quietly(Part& part) {
  Part* head = mail_.load(std::memory_order_relaxed);
  do {
    if (head == closed_mark) return false;
    part.next_in_lane = head;
  } while (!mail_.compare_exchange_weak(head, &part, std::memory_order_seq_cst));
  return true;
}

bool Inbox::wake_sleeper() {
  const bool sleeps = state_.load(std::memory_order_seq_cst) != State::working;
  if (sleeps) wake();
  return sleeps;
}

void Inbox::attend() {
  attention_.store(true, std::memory_order_seq_cst);
  wake();
}

void Inbox::wake() {
  State state = state_.load(std::memory_order_seq_cst);
  if (state == State::working || !state_.compare_exchange_strong(state, State::working)) return;
  const std::scoped_lock lock(mutex_);
  if (state == State::sleeping) {
    woken_.notify_one();
  } else if (state == State::on_events) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event_.get(), &one, sizeof one);
  } else if (engine::Queue* queue = polled_.load(std::memory_order_relaxed)) {
    queue->wake();
  }
}

bool Inbox::has_mail() const {
  const Part* const head = mail_.load(std::memory_order_seq_cst);
  return head != nullptr && head != closed_mark;
}

bool Inbox::has_news() const {
  return has_mail() || attention_.load(std::memory_order_seq_cst);
}

Part* Inbox::take() {
  return has_mail() ? take_and_leave(nullptr) : nullptr;
}

Part* Inbox::take_last() {
  return take_and_leave(closed_mark);
}

Part* Inbox::take_and_leave(Part* mark) {
  Part* newest = mail_.exchange(mark, std::memory_order_acquire);
  if (newest == closed_mark) return nullptr;
  Part* oldest = nullptr;
  while (newest != nullptr) {
    Part* const next = std::exchange(newest->next_in_lane, oldest);
    oldest = std::exchange(newest, next);
  }
  return oldest;
}

void Inbox::sleep(TimePoint until, Duration spin) {
  if (spin > Duration::zero()) {
    const TimePoint spin_end = std::min(until, Clock::now() + spin);
    while (Clock::now() < spin_end) {
      if (has_news()) return;
      relax_processor();
    }
  }
  std::unique_lock lock(mutex_);
  state_.store(State::sleeping, std::memory_order_seq_cst);
  if (!has_news()) {
    woken_.wait_until(lock, until, [this] { return state_.load(std::memory_order_relaxed) != State::sleeping; });
  }
  state_.store(State::working, std::memory_order_relaxed);
}

std::size_t Inbox::poll(engine::Queue& queue, std::span<engine::Done> done, TimePoint until) {
  if (until == TimePoint::min()) return queue.poll(done, until);  // which does not sleep
  polled_.store(&queue, std::memory_order_relaxed);
  state_.store(State::polling, std::memory_order_seq_cst);
  if (has_news()) until = TimePoint::min();
  const std::size_t count = queue.poll(done, until);
  state_.store(State::working, std::memory_order_relaxed);
  return count;
}

bool Inbox::sleep_on(std::span<pollfd> events, TimePoint until) {
  if (!event_) {
    UniqueFd made(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!made) return false;
    const std::scoped_lock lock(mutex_);
    event_ = std::move(made);
  }
  events[0] = {event_.get(), POLLIN, 0};
  state_.store(State::on_events, std::memory_order_seq_cst);
  if (!has_news()) {
    const TimePoint now = Clock::now();
    const auto ns = std::chrono::nanoseconds(until > now ? until - now : Duration::zero()).count();
    const timespec limit{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    ::ppoll(events.data(), events.size(), &limit, nullptr);
  }
  state_.store(State::working, std::memory_order_relaxed);
  // Who wakes the lane may be slow, and write when it is up already: that ends the next sleep, and no other.
  if (events[0].revents != 0) {
    std::uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t read = ::read(event_.get(), &wakes, sizeof wakes);
  }
  return true;
}

void Inbox::forget_queue() {
  const std::scoped_lock lock(mutex_);
  polled_.store(nullptr, std::memory_order_relaxed);
}

}  // namespace penstock::core
