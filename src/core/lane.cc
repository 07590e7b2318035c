#include "core/lane.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "base/bounded.h"
#include "base/log.h"

namespace penstock::core {

namespace {

// Never dereferenced: stands in the mailbox of a lane that takes no more.
Part* const closed_mark = reinterpret_cast<Part*>(std::uintptr_t{1});  // NOLINT(performance-no-int-to-ptr)

// So long at most, whatever a queue's idea of sleeping is.
constexpr Duration longest_sleep = std::chrono::seconds(10);
// Between two queues that both have work: neither can wake the lane while it sleeps in the other.
constexpr Duration shared_sleep = std::chrono::microseconds(200);

// Operations that callers start one by one.
constexpr std::uint32_t sent_at_once_most = 4;
constexpr std::uint32_t held_back_most = 4;
// Completions that are looked at before new operations are sent, so that the device is not idle meanwhile.
constexpr std::size_t done_at_once = 8;

// Below this the clock costs more than it tells.
constexpr std::uint64_t timed_from_bytes = 1 << 20;

// A queue may do its work inside poll: only time in which the thread did nothing was spent waiting.
class WaitWatch {
 public:
  explicit WaitWatch(LaneTrace* trace) : trace_(trace) {
    if (trace_ == nullptr) return;
    begun_ = Clock::now();
    cpu_seconds_ = thread_cpu_seconds();
  }
  void end() const {
    if (trace_ == nullptr) return;
    const TimePoint now = Clock::now();
    const double worked = thread_cpu_seconds() - cpu_seconds_;
    if (worked * 2 < seconds_between(begun_, now)) trace_->add_wait(TraceKind::waits_for_storage, begun_, now);
  }

 private:
  LaneTrace* const trace_;
  TimePoint begun_;
  double cpu_seconds_ = 0;
};

}  // namespace

Lane::Lane(std::shared_ptr<Environment> environment, const LaneSettings& settings, std::function<bool()> on_stuck)
    : environment_(std::move(environment)),
      settings_(settings),
      on_stuck_(std::move(on_stuck)),
      statistics_(environment_->statistics.add_lane()),
      trace_(environment_->traces.add_lane()),
      flights_(settings.depth),
      bytes_allowed_(settings.bytes_in_flight),
      window_(environment_->options.storage_chunk_bytes, settings.least_staged_bytes, settings.bytes_in_flight),
      queues_(environment_->engines->size()),
      done_(done_at_once),
      staging_keys_(environment_->engines->size()),
      copied_(settings.depth) {
  active_.reserve(1024);
  to_wake_.reserve(settings.depth);
  free_.reserve(settings.depth);
  retries_.reserve(settings.depth);
  for (std::uint32_t i = settings.depth; i > 0; --i) free_.push_back(i - 1);
}

Lane::~Lane() {
  release_resources();
}

bool Lane::post(Part& part) {
  Part* head = mailbox_.load(std::memory_order_relaxed);
  do {
    if (head == closed_mark) return false;
    part.next_in_mailbox = head;
  } while (!mailbox_.compare_exchange_weak(head, &part, std::memory_order_seq_cst));
  wake();
  return true;
}

void Lane::attend() {
  attention_.store(true, std::memory_order_seq_cst);
  wake();
}

void Lane::close() {
  closing_.store(true, std::memory_order_seq_cst);
  attend();
}

void Lane::wake() {
  State state = state_.load(std::memory_order_seq_cst);
  if (state == State::working || !state_.compare_exchange_strong(state, State::working)) return;
  const std::scoped_lock lock(idle_mutex_);
  if (state == State::idle) {
    idle_.notify_one();
  } else if (engine::Queue* queue = polled_.load(std::memory_order_relaxed)) {
    queue->wake();
  }
}

void Lane::run() {
  const ServesOthers serves_others;
  // Waits for copies are a few microseconds long; the default slack would make each fifty more.
  ::prctl(PR_SET_TIMERSLACK, 1000);
  while (!finished()) step(TimePoint::max());
  release_resources();
}

void Lane::drive(Part& part) {
  accept(part, Clock::now());
  while (!active_.empty()) step(TimePoint::max());
}

bool Lane::try_start(Part& part, const std::shared_ptr<Request>& request) {
  const std::unique_lock lock(worker_mutex_, std::try_to_lock);
  if (!lock || free_.empty() || cutting_first_ != nullptr || closing_.load(std::memory_order_relaxed)) return false;
  cuda::Device* const gpu = request->spans[0].gpu;
  if (gpu != nullptr && !get_ready(*gpu, request->staged_toward())) return false;
  part.hold = request;
  busy_.store(true, std::memory_order_relaxed);
  unattended_.store(false, std::memory_order_relaxed);
  const TimePoint now = Clock::now();
  accept(part, now);
  cut_work(now);
  submit_batches();
  // With much in flight, a few more operations lose nothing by going to the kernel together: when there are enough of
  // them, when someone waits, or when the caretaker comes by.
  std::uint32_t in_queue = 0;
  for (const EngineQueue& queue : queues_) in_queue += queue.in_queue;
  if (++held_back_ >= held_back_most || in_queue <= sent_at_once_most) collect(TimePoint::min());
  wake_waiters();
  return true;
}

bool Lane::try_step(TimePoint until) {
  const std::unique_lock lock(worker_mutex_, std::try_to_lock);
  if (!lock) return false;
  unattended_.store(false, std::memory_order_relaxed);
  step(until);
  busy_.store(!active_.empty() || orphans_ != 0, std::memory_order_relaxed);
  return true;
}

void Lane::take_care() {
  if (busy() && unattended_.exchange(true, std::memory_order_relaxed)) try_step(TimePoint::min());
}

bool Lane::finish(TimePoint until) {
  const std::scoped_lock lock(worker_mutex_);
  while (!finished() && Clock::now() < until) step(until);
  if (!finished()) return false;
  release_resources();
  return true;
}

bool Lane::finished() const {
  return mailbox_closed_ && active_.empty() && orphans_ == 0;
}

void Lane::step(TimePoint until) {
  const TimePoint now = Clock::now();
  accept_mail(now);
  if (attention_.exchange(false, std::memory_order_seq_cst) || now >= next_look_) {
    look_after_all(now);
    prepare_gpus(now);
    // What a caller waits for may have ended; orphans alone are no reason for it to stay.
    if (settings_.runner == Runner::callers) until = TimePoint::min();
  }
  if (copying_ != 0) collect_copies();
  send_due_retries(now);
  cut_work(now);
  wake_waiters();
  submit_batches();
  issue_copies(false);
  collect(std::min(until, next_time_to_look(now)));
}

bool Lane::has_mail() const {
  const Part* head = mailbox_.load(std::memory_order_seq_cst);
  return head != nullptr && head != closed_mark;
}

void Lane::accept_mail(TimePoint now) {
  if (mailbox_closed_) return;
  // A retired lane stays open to those who still know it until nothing is left that could need it.
  const bool take_no_more = closing_.load(std::memory_order_relaxed) || (retired_ && active_.empty() && orphans_ == 0);
  if (!take_no_more && mailbox_.load(std::memory_order_relaxed) == nullptr) return;
  Part* newest = mailbox_.exchange(take_no_more ? closed_mark : nullptr, std::memory_order_acquire);
  mailbox_closed_ = take_no_more;
  Part* oldest = nullptr;
  while (newest != nullptr) {
    Part* next = std::exchange(newest->next_in_mailbox, oldest);
    oldest = std::exchange(newest, next);
  }
  while (oldest != nullptr) accept(*std::exchange(oldest, oldest->next_in_mailbox), now);
}

void Lane::accept(Part& part, TimePoint now) {
  part.index_in_lane = active_.size();
  active_.push_back(&part);
  part.last_progress = now;
  if (part.hold->total_bytes >= timed_from_bytes) {
    part.entered = now;
    part.cpu_seconds_at_entry = thread_cpu_seconds();
    part.copy_seconds_at_entry = copy_seconds_;
  }
  push_cutting(part);
  next_look_ = std::min({next_look_, part.hold->deadline, stalls_at(now)});
  if (part.hold->stop_code() != Code::ok || closing_.load(std::memory_order_relaxed)) next_look_ = now;
}

void Lane::push_cutting(Part& part) {
  part.in_cutting = true;
  part.next_cutting = nullptr;
  (cutting_last_ != nullptr ? cutting_last_->next_cutting : cutting_first_) = &part;
  cutting_last_ = &part;
}

void Lane::pop_cutting() {
  Part& part = *cutting_first_;
  part.in_cutting = false;
  cutting_first_ = part.next_cutting;
  if (cutting_first_ == nullptr) cutting_last_ = nullptr;
}

void Lane::remove_cutting(Part& part) {
  if (!part.in_cutting) return;
  Part* before = nullptr;
  for (Part* at = cutting_first_; at != &part; at = at->next_cutting) before = at;
  (before != nullptr ? before->next_cutting : cutting_first_) = part.next_cutting;
  if (cutting_last_ == &part) cutting_last_ = before;
  part.in_cutting = false;
}

void Lane::submit_batches() {
  for (EngineQueue& queue : queues_) {
    if (queue.batch.empty()) continue;
    const std::size_t taken = queue.queue->submit(queue.batch);
    for (std::size_t i = 0; i < taken; ++i) {
      flights_[static_cast<std::uint32_t>(queue.batch[i].cookie)].in_queue = true;
    }
    queue.in_queue += static_cast<std::uint32_t>(taken);
    queue.batch.erase(queue.batch.begin(), queue.batch.begin() + static_cast<std::ptrdiff_t>(taken));
  }
}

TimePoint Lane::next_time_to_look(TimePoint now) const {
  TimePoint time = std::min(next_look_, now + longest_sleep);
  for (const std::uint32_t index : retries_) time = std::min(time, flights_[index].retry_at);
  return time;
}

void Lane::collect(TimePoint until) {
  if (copying_ != 0) {
    wait_for_copies(until);
    return;
  }
  collect_from_engines(until);
}

std::size_t Lane::collect_from_engines(TimePoint until) {
  std::size_t busy = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].in_queue == 0) continue;
    ++busy;
    last = i;
  }
  if (busy == 0) {
    if (settings_.runner == Runner::own_thread || !retries_.empty() || copying_ != 0) sleep_idle(until);
    return 0;
  }
  if (busy == 1) return poll_queue(last, until);
  std::size_t found = 0;
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].in_queue != 0) found += poll_queue(i, TimePoint::min());
  }
  if (found != 0) return found;
  do poll_first_ = (poll_first_ + 1) % queues_.size();
  while (queues_[poll_first_].in_queue == 0);
  return poll_queue(poll_first_, std::min(until, Clock::now() + shared_sleep));
}

void Lane::sleep_idle(TimePoint until) {
  const TimePoint begun = trace_ != nullptr ? Clock::now() : TimePoint();
  std::unique_lock lock(idle_mutex_);
  state_.store(State::idle, std::memory_order_seq_cst);
  const bool leave_now = has_mail() || attention_.load(std::memory_order_seq_cst) || finished() ||
                         (retired_ && active_.empty() && orphans_ == 0 && !mailbox_closed_);
  if (!leave_now) {
    idle_.wait_until(lock, until, [this] { return state_.load(std::memory_order_relaxed) != State::idle; });
  }
  state_.store(State::working, std::memory_order_relaxed);
  if (trace_ != nullptr && active_.empty()) trace_->add_wait(TraceKind::idle, begun, Clock::now());
}

std::size_t Lane::poll_queue(std::size_t engine, TimePoint until) {
  engine::Queue& queue = *queues_[engine].queue;
  polled_.store(&queue, std::memory_order_relaxed);
  state_.store(State::polling, std::memory_order_seq_cst);
  if (has_mail() || attention_.load(std::memory_order_seq_cst)) until = TimePoint::min();
  held_back_ = 0;
  const WaitWatch watch(trace_);
  const std::size_t count = queue.poll(done_, until);
  state_.store(State::working, std::memory_order_relaxed);
  watch.end();
  if (count == 0) return 0;
  const TimePoint now = Clock::now();
  for (std::size_t i = 0; i < count; ++i) on_done(engine, done_[i], now);
  statistics_->publish(now);
  wake_waiters();
  return count;
}

TimePoint Lane::stalls_at(TimePoint last_progress) const {
  const double seconds = environment_->options.deadlines.stall_seconds;
  return seconds > 0 ? last_progress + duration_from_seconds(seconds) : TimePoint::max();
}

void Lane::look_after_all(TimePoint now) {
  next_look_ = TimePoint::max();
  // From the end: leaving puts the last part in the place of the one that left.
  for (std::size_t i = active_.size(); i > 0; --i) look_after(*active_[i - 1], now);
}

void Lane::look_after(Part& part, TimePoint now) {
  Request& request = *part.hold;
  if (part.stage == Stage::identities && request.servers_answered()) {
    leave(part);
    return;
  }
  if (part.grace_end == TimePoint::max()) {
    const TimePoint stalled = stalls_at(part.last_progress);
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

// Ends what has not reached an engine, and asks the engines to end the rest.
void Lane::withdraw(Part& part, TimePoint now) {
  part.grace_end = now + duration_from_seconds(environment_->options.deadlines.cancel_grace_seconds);
  part.withdrawn = true;
  part.exhausted = true;
  remove_cutting(part);
  const auto is_of_part = [&](std::uint32_t index) { return flights_[index].part == &part; };
  std::erase_if(retries_, is_of_part);
  for (EngineQueue& queue : queues_) {
    std::erase_if(queue.batch, [&](const engine::Op& op) { return is_of_part(static_cast<std::uint32_t>(op.cookie)); });
  }
  for (std::uint32_t i = 0; i < flights_.size(); ++i) {
    if (!is_of_part(i)) continue;
    if (flights_[i].in_queue) {
      queues_[flights_[i].entry->engine()].queue->cancel(flights_[i].op.cookie);
    } else if (!flights_[i].copying) {  // a copy can't be called back, but it does not take long
      --part.in_flight;
      free_flight(i);
    }
  }
}

void Lane::abandon(Part& part) {
  for (Flight& flight : flights_) {
    if (flight.part != &part) continue;
    flight.kept = part.hold->stores[store_of(flight)].entry;
    bytes_in_flight_ -= std::exchange(flight.weight_bytes, 0);
    if (std::exchange(flight.fills_slot, false)) --slots_filling_;
    leave_window(flight);
    const std::byte* const touched = flight.copying ? flight.user : flight.op.memory;
    if (touched != nullptr) {
      flight.held = part.hold->held.holder_of(touched);
      flight.quarantined_bytes = flight.copying ? flight.length : flight.op.length;
      environment_->quarantined_bytes.fetch_add(flight.quarantined_bytes, std::memory_order_relaxed);
    }
    flight.part = nullptr;
    flight.orphan = true;
    ++orphans_;
  }
  part.in_flight = 0;
  part.abandoned = true;
  log(LogLevel::warning, "operations on " + part.hold->stores[0].entry->info().name +
                             " did not come back in time; their request is abandoned");
  leave(part);
  if (!std::exchange(tried_to_retire_, true)) retired_ = on_stuck_ && on_stuck_();
}

void Lane::settle(Part& part) {
  if (part.exhausted && part.in_flight == 0) leave(part);
}

void Lane::leave(Part& part) {
  remove_cutting(part);
  active_[part.index_in_lane] = active_.back();
  active_[part.index_in_lane]->index_in_lane = part.index_in_lane;
  active_.pop_back();
  if (part.hold->total_bytes >= timed_from_bytes) {
    part.cpu_seconds += thread_cpu_seconds() - part.cpu_seconds_at_entry;
    part.copy_seconds += copy_seconds_ - part.copy_seconds_at_entry;
    part.wall_seconds += seconds_between(part.entered, Clock::now());
  }
  const std::shared_ptr<Request> request = std::move(part.hold);
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
  some_ended_ = true;
  if (request->conclude(request)) to_wake_.push_back(request);
}

// The lane's thread must not hang with a server: another asks, and the part stays here, where its deadline is seen to.
void Lane::ask_servers(Part& part) {
  remove_cutting(part);
  part.hold->ask_servers([lane = std::weak_ptr<Lane>(part.lane)] {
    if (const auto self = lane.lock()) self->attend();
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
  {
    const std::scoped_lock lock(idle_mutex_);
    polled_.store(nullptr, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < staging_keys_.size(); ++i) {
    if (staging_keys_[i] && *staging_keys_[i]) (*environment_->engines)[i]->detach(*staging_keys_[i]);
    staging_keys_[i].reset();
  }
  for (EngineQueue& queue : queues_) queue.queue.reset();
  gpus_.clear();
  made_staging_.store(nullptr, std::memory_order_relaxed);
  staging_.reset();
}

}  // namespace penstock::core
