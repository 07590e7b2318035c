// Inbox: what other threads hand to a lane, and how they wake it, wherever it sleeps: here, in the poll of a queue, or
// until one of several events. Nobody locks anything for it but to wake a lane that sleeps.
//
// Thread safety: post and attend from any thread; the rest is the worker's. Lifetime: its lane's.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "engine/queue.h"

namespace penstock::core {

struct Part;

class Inbox {
 public:
  Inbox() = default;
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Hands over a part; false if no more are taken.
  bool post(Part& part);
  // The same without waking the worker: wake_sleeper does, whoever calls it.
  bool post_quietly(Part& part);
  // Wakes the worker if it sleeps for want of work; says whether it did.
  bool wake_sleeper();
  // Makes the worker look at everything soon.
  void attend();

  // Whether there is something that the worker has not taken yet.
  bool has_news() const;
  bool has_mail() const;
  bool take_attention() { return attention_.exchange(false, std::memory_order_seq_cst); }
  // All that was posted, the oldest first (Part::next_in_lane).
  Part* take();
  // The same, and none from now on.
  Part* take_last();

  // Sleeps until the time has come, or there is news, for which it spins first: `spin` is short.
  void sleep(TimePoint until, Duration spin = Duration::zero());
  // As Queue::poll, and until there is news.
  std::size_t poll(engine::Queue& queue, std::span<engine::Done> done, TimePoint until);
  // Sleeps until one of the events happens, the time has come, or there is news. The first is the Inbox's own, and
  // filled in here. False where there can be no such event: then it has not slept.
  bool sleep_on(std::span<pollfd> events, TimePoint until);
  // Before queues go: whoever wakes the lane must not find one that is gone.
  void forget_queue();

 private:
  enum class State : std::uint32_t { working, sleeping, polling, on_events };

  void wake();
  Part* take_and_leave(Part* mark);

  std::atomic<Part*> mail_{nullptr};  // newest first; a mark when closed
  std::atomic<bool> attention_{false};
  std::atomic<State> state_{State::working};
  std::mutex mutex_;  // held to wake, and to sleep here
  std::condition_variable woken_;
  std::atomic<engine::Queue*> polled_{nullptr};
  UniqueFd event_;  // made when it is first slept on
};

}  // namespace penstock::core
