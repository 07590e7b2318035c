#include "cuda/responder.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>

#include "base/futex.h"

namespace penstock::cuda {
namespace {

using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;  // tests turn the other

constexpr auto awake = 10ms;   // after the last answer
constexpr auto eager = 200us;  // in which nobody else gets the processor
constexpr auto nap = 100us;    // of the one who keeps watch
constexpr unsigned looks_a_clock = 64;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Which of the offers is this thread's.
[[gnu::tls_model("initial-exec")]] constinit thread_local std::size_t own_offer = SIZE_MAX;

}  // namespace

Responder& Responder::of_process() {
  static auto* responder = new Responder;
  return *responder;
}

Status Responder::add(std::shared_ptr<Asked> asked) {
  const std::scoped_lock lock(mutex_);
  if (Status status = start(); !status) return status;
  asked_.push_back(std::move(asked));
  version_.fetch_add(1, std::memory_order_release);
  return {};
}

std::size_t Responder::size() const {
  const std::scoped_lock lock(mutex_);
  return asked_.size();
}

Status Responder::start() {
  if (threads_ != 0) return {};
  // Half of the processors: the others have a GPU to feed as well.
  const std::size_t wanted = std::clamp<std::size_t>(std::thread::hardware_concurrency() / 2, 1, threads_most);
  try {
    while (threads_ < wanted) {
      std::thread(&Responder::work, this, threads_).detach();
      ++threads_;
    }
  } catch (const std::system_error&) {
    if (threads_ == 0) {
      return Error{Code::out_of_memory, 0, "no thread can be started to answer CUDA graphs",
                   "raise the limit of threads (ulimit -u)"};
    }
  }
  return {};
}

void Responder::wake() {
  wakes_.fetch_add(1);
  futex_wake_all(wakes_);
}

void Responder::share(std::size_t count, const std::function<void(std::size_t)>& part) const {
  Work work;
  work.part = &part;
  work.count = count;
  if (count > 1 && own_offer < offers_.size()) {
    Offer& offer = offers_[own_offer];
    offer.work.store(&work);
    work.run();
    offer.work.store(nullptr);
    while (offer.inside.load() != 0) relax();
    return;
  }
  work.run();
}

// Whoever is inside is counted before he looks, so that an owner who sees nobody has nobody.
bool Responder::help() {
  bool helped = false;
  for (Offer& offer : offers_) {
    if (offer.work.load(std::memory_order_relaxed) == nullptr) continue;
    offer.inside.fetch_add(1);
    if (Work* const work = offer.work.load()) {
      work->run();
      helped = true;
    }
    offer.inside.fetch_sub(1);
  }
  return helped;
}

void Responder::refresh(View& view) {
  if (version_.load(std::memory_order_acquire) == view.version) return;
  const std::scoped_lock lock(mutex_);
  try {
    view.asked = asked_;
  } catch (const std::bad_alloc&) {  // the next look tries again
    return;
  }
  view.version = version_.load(std::memory_order_relaxed);
}

bool Responder::look(View& view) {
  bool answered = false;
  for (const auto& each : view.asked) answered |= each->answer_if_asked(*this);
  return help() || answered;
}

void Responder::drop_those_that_are_over() {
  std::vector<std::shared_ptr<Asked>> over;  // which own memory: not freed under the lock
  const std::scoped_lock lock(mutex_);
  const auto first =
      std::stable_partition(asked_.begin(), asked_.end(), [](const auto& each) { return !each->is_over(); });
  if (first == asked_.end()) return;
  try {
    over.assign(first, asked_.end());
  } catch (const std::bad_alloc&) {  // the next rest tries again
    return;
  }
  asked_.erase(first, asked_.end());
  version_.fetch_add(1, std::memory_order_release);
}

// Until there may be something to do.
void Responder::rest(View& view) {
  drop_those_that_are_over();
  const std::uint32_t wakes = wakes_.load();
  refresh(view);
  if (look(view)) return;
  const bool needs_watch = std::ranges::any_of(view.asked, [](const auto& each) { return each->may_be_asked(); });
  if (needs_watch && !is_watched_.exchange(true)) return keep_watch(view, wakes);
  view = {};  // those that are over meanwhile are not kept by a thread that sleeps
  futex_wait_until(wakes_, wakes, TimePoint::max());
}

// Who finds something leaves the watch to others, and wakes them, before it answers, which may take long.
void Responder::keep_watch(const View& view, std::uint32_t wakes) {
  const auto is_asked = [&] {
    return std::ranges::any_of(view.asked, [](const auto& each) { return each->is_asked(); });
  };
  while (wakes_.load() == wakes && !is_asked()) futex_wait_until(wakes_, wakes, SteadyClock::now() + nap);
  is_watched_.store(false);
  wake();
}

void Responder::work(std::size_t thread) {
  ::pthread_setname_np(::pthread_self(), "penstock-answer");
  own_offer = thread;
  View view;
  auto last = SteadyClock::now();
  unsigned looks = 0;
  for (;;) {
    refresh(view);
    if (look(view)) {
      last = SteadyClock::now();
      looks = 0;
      continue;
    }
    if (++looks % looks_a_clock != 0) {
      relax();
      continue;
    }
    const auto idle = SteadyClock::now() - last;
    if (idle > awake) {
      const std::uint32_t wakes = wakes_.load();
      rest(view);
      if (wakes_.load() != wakes) last = SteadyClock::now();
    } else if (idle > eager) {
      ::sched_yield();
    }
  }
}

}  // namespace penstock::cuda
