// Lane: one worker: the loop in which parts of requests are cut (Cutter), started (Launcher) and carried (Carrier). It
// has a Queue for each engine in use, its own staging memory and statistics; nothing on its data path is locked or
// shared with other lanes.
//
// A lane is run by a thread of its own (run), by the caller of a small synchronous request (drive), or by whoever
// submits to it and waits (try_start, try_step): then nothing is handed from thread to thread.
//
// Invariants:
//  1. A Part leaves its lane exactly once, when none of its pieces is left; pieces that don't come home in time become
//     orphans.
//  2. A lane with orphans never ends; if they stay away, it is retired, and another takes its place.
//  3. Where memory lacks, requests end with Code::out_of_memory, and the lane goes on.
//
// Thread safety: post, attend, close, prepare, has_staging, try_start, try_step, work_if_left and busy from any
// thread; the rest is the worker's, whoever that is at the time. Lifetime: shared by its thread, the LaneSet and the
// requests that may have to wake it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/turn_lock.h"
#include "core/carrier.h"
#include "core/cutter.h"
#include "core/lane_resources.h"
#include "core/launcher.h"
#include "core/part_list.h"
#include "core/request.h"

namespace penstock::core {

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  // `on_stuck` is called once, on the lane's thread, when operations were abandoned: true if another lane took over.
  Lane(std::shared_ptr<Environment> environment, const LaneSettings& settings, std::function<bool()> on_stuck);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Hands over a part; false if the lane takes no more.
  bool post(Part& part) {
    busy_.store(true, std::memory_order_relaxed);
    return lane_.inbox.post(part);
  }
  // The same without waking the lane: Request::wake_next_lanes does that.
  bool post_quietly(Part& part) {
    busy_.store(true, std::memory_order_relaxed);
    return lane_.inbox.post_quietly(part);
  }
  bool wake_sleeper() { return lane_.inbox.wake_sleeper(); }
  // Makes the lane look at its requests' stop codes soon.
  void attend() { lane_.inbox.attend(); }
  // Makes what copies to and from the GPU need; `left` as GpuCopies has it.
  void prepare(cuda::Device& gpu, GpuCopies::Left left);
  // Takes no more, ends every request with Code::closed, and ends when nothing is in flight.
  void close();

  Runner runner() const { return lane_.settings.runner; }
  // Takes it now, if the budget has room for it.
  bool has_staging() { return lane_.staging.get().ok(); }

  // The thread's whole life.
  void run();
  Status get_ready(cuda::Device& gpu, cuda::Toward toward) { return lane_.copies.get_ready(gpu, toward); }
  // Below this the clock costs more than it tells.
  static constexpr std::uint64_t timed_from_bytes = 1 << 20;

  // Works on one part until its request has no part of this lane left. `keep_going` may be empty; false cancels the
  // request. It is asked about every `keep_going_period`.
  void drive(Part& part, const std::function<bool()>& keep_going = {});
  static constexpr Duration keep_going_period = std::chrono::milliseconds(60);
  // Starts a part of one piece here and now, unless another thread is at work or there is no room.
  bool try_start(Part& part, const std::shared_ptr<Request>& request);
  // Works until something has ended or the time has come, unless another thread is at work already.
  bool try_step(TimePoint until);
  // Called now and then: works a little if nobody has since the last call.
  void work_if_left();
  // REQUIRES: nobody works on it.
  bool has_orphans() const { return carrier_.orphans() != 0; }
  // When something is due, if nothing comes back before. REQUIRES: nobody works on it.
  TimePoint next_due() const { return std::min(next_look_, carrier_.next_retry()); }
  // Whether requests or orphans are left; may be out of date.
  bool busy() const { return busy_.load(std::memory_order_relaxed); }
  // Works until everything has ended or the time has come; says whether it has. REQUIRES: close() was called.
  bool finish(TimePoint until);
  // From now on it is never destroyed, as the one that was kept last.
  void keep_with(Lane* last);

 private:
  void step(TimePoint until);
  void work(TimePoint until);
  void start(Part& part);
  template <typename Action>
  void do_or_stop_all(Action action);
  bool finished() const;
  // Whether a retired lane has nothing left that could need it.
  bool may_close() const { return retired_ && active_.empty() && carrier_.orphans() == 0; }
  void take_mail(TimePoint now);
  void accept(Part& part, TimePoint now);
  void launch(TimePoint now);
  std::size_t collect(TimePoint until);
  std::size_t collect_copies();
  void wait_for_copies(TimePoint until);
  void sleep(TimePoint until);
  void look_at_all(TimePoint now);
  void look_at(Part& part, TimePoint now);
  TimePoint stalls_at(TimePoint last_progress) const;
  void withdraw(Part& part, TimePoint now);
  void abandon(Part& part);
  void retire();
  void settle(Part* part);
  void leave(Part& part);
  void ask_servers(Part& part);
  void wake_waiters();
  void release_resources();

  const std::shared_ptr<Environment> environment_;
  const std::function<bool()> on_stuck_;
  LaneResources lane_;
  Carrier carrier_;
  const Cutter cutter_;
  Launcher launcher_;

  TurnLock worker_lock_;  // held by whoever works, where that changes
  std::atomic<bool> busy_{false};
  std::atomic<bool> unattended_{false};
  std::atomic<bool> closing_{false};

  // The worker's own.
  ActiveParts active_;
  PartList to_start_;                              // those that have something left to start, in turn
  std::vector<std::shared_ptr<Request>> to_wake_;  // ended; someone sleeps until then
  TimePoint next_look_ = TimePoint::max();
  bool spins_ = false;           // before it sleeps without work: the next request may come at once
  double copy_seconds_ = 0;      // waited for copies with nothing else to do, in all
  std::uint32_t held_back_ = 0;  // operations that the kernel has not seen yet
  bool mail_closed_ = false;
  bool retired_ = false;
  bool tried_to_retire_ = false;
  bool some_ended_ = false;     // requests, since waiters were last woken
  std::shared_ptr<Lane> self_;  // of one that is never destroyed
  Lane* kept_before_ = nullptr;
};

}  // namespace penstock::core
