#include "core/lane.h"

#include <sys/prctl.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/spin.h"
#include "penstock/capture_mode.h"

namespace penstock::core {

namespace {

// So long at most, whatever a queue's idea of sleeping is.
constexpr Duration longest_sleep = std::chrono::seconds(10);

// Operations that callers start one by one.
constexpr std::uint32_t sent_at_once_most = 4;
constexpr std::uint32_t held_back_most = 4;

// Who waits for short copies looks again at once: to sleep takes longer.
constexpr Duration spin_time = std::chrono::microseconds(50);

// The last copies of a request, for which the caller waits too, have at most this much left to do.
constexpr std::uint64_t last_copies_bytes_max = 16 << 20;
constexpr Duration last_copies_spin_time = std::chrono::microseconds(400);

// Spinning needs a processor that is left over.
constexpr std::uint32_t spins_from_cpus = 8;

// After a request, its lanes are awake for this long: to wake them again takes as long as to move a megabyte.
constexpr Duration idle_spin_time = std::chrono::microseconds(50);

// What is left behind in staging memory takes room from others; a distant store may take a while to bring it.
constexpr int graces_to_be_home = 10;

}  // namespace

Lane::Lane(std::shared_ptr<Environment> environment, const LaneSettings& settings, std::function<bool()> on_stuck)
    : environment_(std::move(environment)),
      on_stuck_(std::move(on_stuck)),
      lane_(*environment_, settings),
      carrier_(lane_),
      cutter_(*environment_, settings.staging_bytes),
      launcher_(lane_, cutter_, carrier_) {
  to_wake_.reserve(settings.depth);
}

Lane::~Lane() {
  release_resources();
}

void Lane::prepare(cuda::Device& gpu, GpuCopies::Left left) {
  lane_.copies.ask_to_prepare(gpu, std::move(left));
  attend();
}

void Lane::close() {
  closing_.store(true, std::memory_order_seq_cst);
  attend();
}

void Lane::run() {
  // Waits for copies are a few microseconds long; the default slack would make each fifty more.
  ::prctl(PR_SET_TIMERSLACK, 1000);
  // From the first copy on, for good: the thread calls the driver all the time, and there would be an exchange each.
  std::optional<RelaxedCaptureMode> mode;
  while (!finished()) {
    if (!mode && lane_.copies.has_gpus()) mode.emplace();
    step(TimePoint::max());
  }
  release_resources();
}

void Lane::drive(Part& part, const std::function<bool()>& keep_going) {
  std::optional<RelaxedCaptureMode> mode;
  if (part.hold->has_gpu) mode.emplace();
  TimePoint asked = Clock::now();
  accept(part, asked);
  while (!active_.empty()) {
    step(keep_going ? asked + keep_going_period : TimePoint::max());
    if (!keep_going || active_.empty() || Clock::now() - asked < keep_going_period) continue;
    asked = Clock::now();
    if (keep_going()) continue;
    part.hold->stop(Code::cancelled);
    attend();
  }
}

bool Lane::try_start(Part& part, const std::shared_ptr<Request>& request) {
  const std::unique_lock lock(worker_lock_, std::try_to_lock);
  if (!lock || closing_.load(std::memory_order_relaxed)) return false;
  if (!lane_.has_place() || !to_start_.empty() || has_orphans()) return false;
  cuda::Device* const gpu = request->spans[0].gpu;
  if (gpu != nullptr && !get_ready(*gpu, request->staged_toward())) return false;
  part.hold = request;
  busy_.store(true, std::memory_order_relaxed);
  unattended_.store(false, std::memory_order_relaxed);
  do_or_stop_all([&] { start(part); });
  return true;
}

void Lane::start(Part& part) {
  const TimePoint now = Clock::now();
  accept(part, now);
  launch(now);
  lane_.queues.submit();
  lane_.statistics->set_in_flight(lane_.queues.in_flight(), lane_.queues.bytes_in_flight());
  // With much in flight, a few more operations lose nothing by going to the kernel together: when there are enough of
  // them, when someone waits, or when the caretaker comes by.
  const bool send = ++held_back_ >= held_back_most || lane_.queues.in_flight() <= sent_at_once_most;
  if (send && lane_.copies.pending() != 0) {
    wait_for_copies(TimePoint::min());
  } else if (send) {
    collect(TimePoint::min());
  }
  wake_waiters();
}

bool Lane::try_step(TimePoint until) {
  const std::unique_lock lock(worker_lock_, std::try_to_lock);
  if (!lock) return false;
  unattended_.store(false, std::memory_order_relaxed);
  step(until);
  busy_.store(!active_.empty() || has_orphans(), std::memory_order_relaxed);
  return true;
}

void Lane::work_if_left() {
  if (busy() && unattended_.exchange(true, std::memory_order_relaxed)) try_step(TimePoint::min());
}

bool Lane::finish(TimePoint until) {
  const std::scoped_lock lock(worker_lock_);
  while (!finished() && Clock::now() < until) step(until);
  if (!finished()) return false;
  release_resources();
  return true;
}

void Lane::keep_with(Lane* last) {
  self_ = shared_from_this();
  kept_before_ = last;
}

bool Lane::finished() const {
  return mail_closed_ && active_.empty() && !has_orphans();
}

void Lane::step(TimePoint until) {
  do_or_stop_all([&] { work(until); });
}

// To start a piece may take memory, which is its request's affair (launch). Nothing else should; but an engine may
// throw where it should not, and then nobody knows for which request.
template <typename Action>
void Lane::do_or_stop_all(Action action) {
  try {
    action();
  } catch (const std::bad_alloc&) {
    active_.for_each([](const Part& part) { part.hold->stop(Code::out_of_memory); });
    attend();
  }
}

void Lane::work(TimePoint until) {
  const TimePoint now = Clock::now();
  const bool is_asked_to_look = lane_.inbox.take_attention();  // before what it may be about is looked at
  take_mail(now);
  if (is_asked_to_look || now >= next_look_) {
    look_at_all(now);
    lane_.copies.prepare_asked();
    // What a caller waits for may have ended; orphans alone are no reason for it to stay.
    if (runner() == Runner::callers) until = TimePoint::min();
  }
  if (lane_.copies.pending() != 0) collect_copies();
  carrier_.send_due_retries(now);
  launch(now);
  wake_waiters();
  lane_.queues.submit();
  lane_.statistics->set_in_flight(lane_.queues.in_flight(), lane_.queues.bytes_in_flight());
  lane_.copies.issue(false);
  until = std::min({until, next_due(), now + longest_sleep});
  if (lane_.copies.pending() != 0) {
    wait_for_copies(until);
  } else {
    collect(until);
  }
}

void Lane::take_mail(TimePoint now) {
  if (mail_closed_) return;
  // A retired lane stays open to those who still know it until nothing is left that could need it.
  mail_closed_ = closing_.load(std::memory_order_relaxed) || may_close();
  Part* part = mail_closed_ ? lane_.inbox.take_last() : lane_.inbox.take();
  while (part != nullptr) accept(*std::exchange(part, part->next_in_lane), now);
}

void Lane::accept(Part& part, TimePoint now) {
  if (part.stage == Stage::transfer) part.hold->wake_next_lanes();
  active_.push(part);
  part.last_progress = now;
  if (part.hold->total_bytes >= timed_from_bytes) {
    if (!part.time) part.time.reset(new (std::nothrow) LaneTime);
  }
  if (part.time) {
    part.time->entered = now;
    part.time->cpu_seconds_at_entry = thread_cpu_seconds();
    part.time->copy_seconds_at_entry = copy_seconds_;
    part.time->made_ready_at_entry = lane_.copies.spent();
  }
  to_start_.push(part);
  next_look_ = std::min({next_look_, part.hold->deadline, stalls_at(now)});
  if (part.hold->stop_code() != Code::ok || closing_.load(std::memory_order_relaxed)) next_look_ = now;
}

void Lane::launch(TimePoint now) {
  const Part* first_passed_over = nullptr;
  launcher_.begin_round();
  while (!to_start_.empty() && launcher_.has_room()) {
    Part& part = to_start_.front();
    if (&part == first_passed_over) return;
    Launch result = Launch::finished;  // where there is no memory to go on
    part.do_or_stop([&] { result = launcher_.start_next(part, now); });
    if (result == Launch::full) return;
    if (result == Launch::waits) {
      if (first_passed_over == nullptr) first_passed_over = &part;
      to_start_.rotate();
      continue;
    }
    const bool unit_is_started = part.unit.count == 0 && part.stage == Stage::transfer;
    // Known at once, a part that has no more to start ends with its last operation and not a step later.
    if (unit_is_started && part.claimed == part.claimed_end && !part.hold->has_more_units()) result = Launch::finished;
    if (result == Launch::finished) {
      to_start_.pop();
      part.exhausted = true;
      settle(&part);
    } else if (unit_is_started) {
      // After each unit the next request has its turn: a short one does not wait for a long one to end.
      to_start_.rotate();
    }
  }
  if (!to_start_.empty() && !lane_.has_place()) Launcher::note_lack_of_places(to_start_.front());
}

std::size_t Lane::collect(TimePoint until) {
  if (lane_.queues.in_flight() == 0) {
    if (runner() == Runner::own_thread || carrier_.has_retries() || lane_.copies.pending() != 0) sleep(until);
    return 0;
  }
  held_back_ = 0;
  TimePoint now;
  const std::size_t count = lane_.queues.collect(until, [&](std::size_t engine, const engine::Done& done) {
    if (now == TimePoint()) now = Clock::now();
    settle(carrier_.on_done(engine, done, now));
  });
  if (count == 0) return 0;
  lane_.statistics->publish(now);
  lane_.statistics->set_in_flight(lane_.queues.in_flight(), lane_.queues.bytes_in_flight());
  wake_waiters();
  return count;
}

void Lane::sleep(TimePoint until) {
  const TimePoint begun = lane_.trace != nullptr ? Clock::now() : TimePoint();
  const bool is_idle = active_.empty() && !has_orphans();
  if (is_idle) busy_.store(false, std::memory_order_relaxed);
  const Duration spin = is_idle && std::exchange(spins_, false) ? idle_spin_time : Duration::zero();
  if (!finished() && !(may_close() && !mail_closed_)) lane_.inbox.sleep(until, spin);
  if (lane_.trace != nullptr && active_.empty()) lane_.trace->add_wait(TraceKind::idle, begun, Clock::now());
}

std::size_t Lane::collect_copies() {
  const std::size_t found = lane_.copies.collect(
      [this](const cuda::CopyDone& done, TimePoint now) { settle(carrier_.on_copied(done, now)); });
  if (found != 0) wake_waiters();
  return found;
}

// Sleeps no longer than the copies may take. What storage brings meanwhile is collected too.
void Lane::wait_for_copies(TimePoint until) {
  const TimePoint begun = Clock::now();
  GpuCopies& copies = lane_.copies;
  if (lane_.queues.in_flight() != 0) {
    // Small copies wait for more of their kind while storage has some at hand.
    const std::size_t added = copies.added();
    const bool found = added != 0 && collect(TimePoint::min()) != 0;
    if (found && copies.added() > added) return;
    copies.issue(true);
    if (!found) collect(std::min(until, begun + copies.between_looks()));
    const TimePoint now = Clock::now();
    // Threads fill long slots whether the lane waits or not: where a copy waits for another, it is the bus that is
    // slow.
    if (lane_.staging.uses_long_slots() && copies.pending() > 1) copy_seconds_ += seconds_between(begun, now);
    copies.watch_streams(now);
    return;
  }
  copies.issue(true);
  const bool are_last = to_start_.empty() && copies.pending_bytes() <= last_copies_bytes_max &&
                        environment_->machine.usable_cpus >= spins_from_cpus;
  const bool spins = are_last || runner() != Runner::own_thread || copies.are_short();
  const TimePoint spin_end = std::min(until, begun + (are_last ? last_copies_spin_time : spin_time));
  TimePoint now = begun;
  while (collect_copies() == 0 && spins && now < spin_end) {
    relax_processor();
    now = Clock::now();
  }
  if (copies.pending() != 0 && copies.last_moved() < begun) {
    sleep(std::min(until, Clock::now() + copies.between_looks()));
  }
  now = Clock::now();
  copy_seconds_ += seconds_between(begun, now);
  if (lane_.trace != nullptr) lane_.trace->add_wait(TraceKind::waits_for_copies, begun, now);
  copies.watch_streams(now);
}

TimePoint Lane::stalls_at(TimePoint last_progress) const {
  const double seconds = environment_->options.deadlines.stall_seconds;
  return seconds > 0 ? last_progress + duration_from_seconds(seconds) : TimePoint::max();
}

void Lane::look_at_all(TimePoint now) {
  next_look_ = TimePoint::max();
  active_.for_each([&](Part& part) { look_at(part, now); });
  if (carrier_.patience_end() <= now) retire();
  if (!tried_to_retire_) next_look_ = std::min(next_look_, carrier_.patience_end());
}

void Lane::look_at(Part& part, TimePoint now) {
  Request& request = *part.hold;
  if (part.stage == Stage::identities && request.servers_answered()) {
    leave(part);
    return;
  }
  if (!part.is_stopped()) {
    const bool is_left = part.in_flight == 0 && request.is_left_to_another(part);
    if (!is_left && std::exchange(part.was_left, false)) part.last_progress = now;
    const TimePoint stalled = is_left ? TimePoint::max() : stalls_at(part.last_progress);
    if (closing_.load(std::memory_order_relaxed)) {
      request.stop(Code::closed);
    } else if (now >= request.deadline || now >= stalled) {
      request.stop(Code::timed_out);
    }
    if (request.stop_code() == Code::ok) {
      next_look_ = std::min({next_look_, request.deadline, stalled});
      return;
    }
    withdraw(part, now);
  }
  if (part.in_flight == 0) {
    leave(part);
  } else if (now >= part.grace_end) {
    abandon(part);
  } else {
    next_look_ = std::min(next_look_, part.grace_end);
  }
}

void Lane::withdraw(Part& part, TimePoint now) {
  const Duration grace = duration_from_seconds(environment_->options.deadlines.cancel_grace_seconds);
  part.grace_end = now + grace;
  part.withdrawn = true;
  part.exhausted = true;
  to_start_.remove(part);
  carrier_.withdraw(part, now + graces_to_be_home * grace);
}

void Lane::abandon(Part& part) {
  carrier_.abandon(part);
  part.do_or_stop([&] {
    log(LogLevel::warning, "operations on " + part.hold->stores[0].entry->info().name +
                               " did not come back in time; their request is abandoned");
  });
  leave(part);
  retire();
}

// Another takes its place, where that is possible.
void Lane::retire() {
  if (!std::exchange(tried_to_retire_, true)) retired_ = on_stuck_ && on_stuck_();
}

// `part` may be null.
void Lane::settle(Part* part) {
  if (part != nullptr && part->exhausted && part->in_flight == 0) leave(*part);
}

void Lane::leave(Part& part) {
  to_start_.remove(part);
  active_.remove(part);
  if (LaneTime* const time = part.time.get()) {
    const Spent& spent = lane_.copies.spent();
    const Spent& before = time->made_ready_at_entry;
    time->cpu_seconds += thread_cpu_seconds() - time->cpu_seconds_at_entry - (spent.cpu_seconds - before.cpu_seconds);
    time->copy_seconds += copy_seconds_ - time->copy_seconds_at_entry;
    const TimePoint end = part.was_left ? part.last_progress : Clock::now();
    time->wall_seconds += seconds_between(time->entered + (spent.time - before.time), end);
  }
  const std::shared_ptr<Request> request = std::move(part.hold);
  spins_ = request->has_gpu && environment_->machine.usable_cpus >= spins_from_cpus;
  if (!request->leave()) return;
  if (const auto stage = request->next_stage(part.stage)) {
    request->rejoin();
    part.hold = request;
    part.stage = *stage;
    part.exhausted = false;
    accept(part, Clock::now());
    if (*stage == Stage::identities) ask_servers(part);
    return;
  }
  // Of short requests, the last completion is near enough.
  const bool is_short = part.time == nullptr && !part.withdrawn;
  const bool someone_sleeps = request->conclude(request, is_short ? part.last_progress : Clock::now());
  if (to_wake_.size() == to_wake_.capacity()) wake_waiters();
  some_ended_ = true;
  if (someone_sleeps) to_wake_.push_back(request);
}

// The lane's thread must not hang with a server: another asks, and the part stays here, where its deadline is seen to.
void Lane::ask_servers(Part& part) {
  to_start_.remove(part);
  part.do_or_stop([&] {
    part.hold->ask_servers([lane = std::weak_ptr<Lane>(part.lane)] {
      if (const auto self = lane.lock()) self->attend();
    });
  });
}

// After a whole batch, so that a caller who keeps many requests alive finds many ended and submits as many at once.
void Lane::wake_waiters() {
  if (!std::exchange(some_ended_, false)) return;
  environment_->ends.announce();
  for (const auto& request : to_wake_) request->wake_waiters();
  to_wake_.clear();
}

void Lane::release_resources() {
  lane_.staging.detach();
  lane_.queues.clear();
  lane_.copies.clear();
  lane_.staging.clear();
}

}  // namespace penstock::core
