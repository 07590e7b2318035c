#include "core/lane_set.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <span>
#include <system_error>
#include <utility>

#include "base/bounded.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/out_of_memory.h"

namespace penstock::core {

namespace {

// Through the page cache, spread over the lanes: the kernel reads ahead by itself.
constexpr std::uint64_t cached_bytes_total = 64 << 20;
constexpr std::uint32_t threads_total = 64;
// A request that no thread waits for is worked on in the second period at the latest: within 1 ms.
constexpr auto caretaker_period = std::chrono::microseconds(400);
// Without work for so long, the caretaker goes to sleep.
constexpr int caretaker_idle_periods = 100;

constexpr Duration prepare_time = std::chrono::seconds(30);

constexpr std::string_view leaked_message =
    "a lane still waits for operations that never came back; it is left behind with its memory";

LaneSettings lane_settings(const Options& options) {
  return {.runner = Runner::own_thread,
          .depth = options.operations_in_flight,
          .threads = std::max(1U, threads_total / options.lanes),
          .staging_bytes = options.staging_slot_bytes * options.staging_slots_per_lane,
          .cached_bytes_most = std::max(options.storage_chunk_bytes * 2, cached_bytes_total / options.lanes),
          .long_slots = LongSlots::of(options)};
}

// A block of the store, or what is transformed, may not fit its staging memory.
bool fits_callers_lane(const Request& request) {
  return request.transforms == nullptr &&
         request.stores[0].entry->alignment(request.direction) <= LaneSet::driven_staging_bytes;
}

// Threads lie far apart, and evenly: the upper half of a product with the golden ratio tells them apart.
std::size_t number_of_thread() {
  return static_cast<std::uint64_t>(::pthread_self()) * 0x9e3779b97f4a7c15 >> 32;
}

Error no_thread() {
  return {Code::out_of_memory, 0, "no thread could be started for it",
          "raise the limit of threads (`ulimit -u`), or that of the container"};
}

// Its operations may still touch what it owns, and nobody is there to wait for them.
void keep_for_ever(const std::shared_ptr<Lane>& lane) {
  static constinit std::mutex mutex;
  static constinit Lane* last = nullptr;
  const std::scoped_lock lock(mutex);
  lane->keep_with(last);
  last = lane.get();
}

// Whether it came to that in time.
bool wait_for_none(const std::atomic<std::uint32_t>& left, TimePoint until) {
  std::uint32_t now = left.load(std::memory_order_acquire);
  for (; now != 0 && Clock::now() < until; now = left.load(std::memory_order_acquire)) {
    futex_wait_until(left, now, until);
  }
  return now == 0;
}

}  // namespace

LaneSet::LaneSet(const std::shared_ptr<Environment>& environment)
    : LaneSet(environment, {.lanes = environment->options.lanes,
                            .staging_bytes = environment->options.staging_slot_bytes *
                                             environment->options.staging_slots_per_lane}) {}

LaneSet::LaneSet(std::shared_ptr<Environment> environment, const Size& size)
    : environment_(std::move(environment)),
      sizes_(size),
      size_(size.lanes),
      workers_(size_),
      direct_driven_{.most = direct_driven_most,
                     .staging_bytes = direct_driven_staging_bytes,
                     .depth = direct_driven_staging_bytes / Request::one_lane_piece_bytes_min,
                     .is_inline = false,
                     .flow_shares = std::max(1U, size_ / 2)},
      callers_lanes_(std::min(size_, callers_lanes_most)) {
  driven_.free.reserve(driven_most);
  long_driven_.free.reserve(long_driven_most);
  direct_driven_.free.reserve(direct_driven_most);
  stuck_.reserve(driven_most + long_driven_most + direct_driven_most);
}

LaneSet::~LaneSet() {
  close();
}

LaneSet::Worker LaneSet::make_worker(std::uint32_t slot) {
  Worker worker;
  auto on_stuck = [set = weak_from_this(), slot] {
    const auto self = set.lock();
    return self && self->replace(slot);
  };
  LaneSettings settings = lane_settings(environment_->options);
  settings.staging_bytes = sizes_.staging_bytes;
  if (!sizes_.has_long_slots) settings.long_slots = {};
  worker.lane = std::make_shared<Lane>(environment_, settings, std::move(on_stuck));
  worker.ended = std::make_shared<std::atomic<std::uint32_t>>(0);
  return worker;
}

bool LaneSet::ensure_started(Worker& worker) {
  if (worker.thread.joinable()) return true;
  try {
    worker.thread = std::thread([lane = worker.lane, ended = worker.ended] {
      lane->run();
      ended->store(1, std::memory_order_release);
      futex_wake_all(*ended);
    });
    lacks_threads_ = false;
  } catch (const std::system_error& error) {
    if (!std::exchange(lacks_threads_, true)) {
      static_cast<void>(or_out_of_memory([&]() -> Status {
        log(LogLevel::warning, std::string("no thread could be started for a lane: ") + error.what());
        return {};
      }));
    }
  } catch (const std::bad_alloc&) {
    lacks_threads_ = true;
  }
  return worker.thread.joinable();
}

std::shared_ptr<Lane> LaneSet::lane_at(std::uint32_t slot) {
  Worker& worker = workers_[slot];
  if (!worker.lane && !or_out_of_memory([&] { return worker = make_worker(slot), Status(); })) return nullptr;
  return ensure_started(worker) ? worker.lane : nullptr;
}

bool LaneSet::has_staging() {
  const std::scoped_lock lock(mutex_);
  bool has_some = false;
  for (std::uint32_t slot = 0; slot < size_ && !closed_; ++slot) {
    const auto lane = lane_at(slot);
    has_some |= lane && lane->has_staging();
  }
  return has_some;
}

Status LaneSet::prepare(cuda::Device& gpu) {
  const auto left = std::make_shared<std::atomic<std::uint32_t>>(0);
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) return Error{Code::closed, 0, "the Context is closing", ""};
    if (std::find(prepared_.begin(), prepared_.end(), &gpu) != prepared_.end()) return {};
    bool has_lanes = false;
    for (std::uint32_t slot = 0; slot < size_; ++slot) {
      const auto lane = lane_at(slot);
      if (lane) lane->prepare(gpu, left);
      has_lanes |= lane != nullptr;
    }
    if (!has_lanes) return no_thread();
  }
  cuda::StreamOrder::prepare(gpu);
  if (!wait_for_none(*left, Clock::now() + prepare_time)) {
    return Error{Code::timed_out, 0, "preparing " + gpu.info().domain.name() + " took too long",
                 "is the GPU busy, or are all lanes stuck?"};
  }
  const std::scoped_lock lock(mutex_);
  prepared_.push_back(&gpu);
  return {};
}

Status LaneSet::submit_in_order(const std::shared_ptr<Request>& request) {
  const auto start = [self = shared_from_this(), request] {
    request->ask_for_ranges();
    if (request->stop_code() != Code::ok || !request->note_identities_again()) return false;
    self->submit(request);
    return true;
  };
  return environment_->streams.add(request, start);
}

bool LaneSet::give_lanes_that(bool (*fit)(Lane& lane), Request& request, std::size_t first) {
  auto& parts = request.parts;
  std::size_t given = first;
  // For a short request the lane that was given last is the quickest, if it is free: thread and stream are warm.
  const auto& last = workers_[last_].lane;
  const bool is_last_free = parts.size() == 1 && last && !last->busy();
  const std::uint32_t begin = request.first_lane.value_or(is_last_free ? last_ : next_);
  for (std::uint32_t turn = 0; turn < size_ && given < parts.size(); ++turn) {
    const std::uint32_t slot = (begin + turn) % size_;
    auto lane = lane_at(slot);
    if (!request.first_lane && !is_last_free) ++next_;
    if (!lane || !fit(*lane)) continue;
    parts[given++].lane = std::move(lane);
    last_ = slot;
  }
  const std::size_t found = given - first;
  for (; found != 0 && given < parts.size(); ++given) parts[given].lane = parts[given - found].lane;
  return found != 0;
}

// Most GPU memory is reached through staging memory. The budget may have no room for that of every lane. Where no lane
// has any, each part fails with the reason.
bool LaneSet::give_lanes(Request& request, std::size_t first) {
  const auto any = [](Lane&) { return true; };
  const auto has_staging = [](Lane& lane) { return lane.has_staging(); };
  return (request.needs_staging && give_lanes_that(has_staging, request, first)) ||
         give_lanes_that(any, request, first);
}

// A lane stays open while it has a slot, and it can't lose that while the lock is held.
void LaneSet::post(const std::shared_ptr<Request>& request, std::size_t first) {
  auto& parts = request->parts;
  for (std::size_t i = first; i < parts.size(); ++i) parts[i].hold = request;
  request->lanes_are_set();
  for (std::size_t i = first; i < parts.size(); ++i) parts[i].lane->post_quietly(parts[i]);
  request->parts_are_posted(static_cast<std::uint32_t>(first));
}

void LaneSet::submit(const std::shared_ptr<Request>& request) {
  bool is_posted = false;
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) {
      request->stop(Code::closed);
    } else if (!give_lanes(*request, 0)) {
      request->stop_because(no_thread());
    } else {
      post(request, 0);
      is_posted = true;
    }
  }
  if (is_posted) {
    request->wake_next_lanes();
    return;
  }
  // Nobody is there to work on it. Without the lock: its callback may run here, and submit again.
  Request::end_unstarted(request);
}

std::shared_ptr<Lane> LaneSet::callers_lane() {
  CallersLane& slot = callers_lanes_[number_of_thread() % callers_lanes_.size()];
  return slot.is_made.load(std::memory_order_acquire) ? slot.lane : make_callers_lane(slot);
}

std::shared_ptr<Lane> LaneSet::make_callers_lane(CallersLane& slot) {
  const std::scoped_lock lock(mutex_);
  if (closed_ || !ensure_caretaker()) return nullptr;
  if (!slot.lane) {
    LaneSettings settings = lane_settings(environment_->options);
    settings.runner = Runner::callers;
    settings.staging_bytes = driven_staging_bytes;
    settings.long_slots = {};
    const Status made = or_out_of_memory([&] {
      slot.lane = std::make_shared<Lane>(environment_, settings, nullptr);
      return Status();
    });
    slot.is_made.store(made.ok(), std::memory_order_release);
  }
  return slot.lane;
}

// Without one nobody would carry on what nobody waits for.
bool LaneSet::ensure_caretaker() {
  if (caretaker_.joinable()) return true;
  try {
    caretaker_ = std::jthread([this](const std::stop_token& stop) { work_on_callers_lanes(stop); });
    return true;
  } catch (const std::exception&) {  // no thread, or no memory for it
    return false;
  }
}

bool LaneSet::start(const std::shared_ptr<Request>& request) {
  if (!fits_callers_lane(*request)) return false;
  auto lane = callers_lane();
  if (!lane) return false;
  Part& part = request->parts[0];
  part.lane = std::move(lane);
  if (!part.lane->try_start(part, request)) {
    part.lane = nullptr;
    return false;
  }
  request->lanes_are_set();
  if (caretaker_sleeps_.load(std::memory_order_relaxed)) {
    const std::scoped_lock lock(mutex_);
    wake_caretaker();
  }
  return true;
}

bool LaneSet::help(TimePoint until) {
  constexpr Duration turn = std::chrono::microseconds(200);
  std::array<Lane*, callers_lanes_most> busy{};
  std::size_t count = 0;
  for (const CallersLane& slot : callers_lanes_) {
    if (slot.is_made.load(std::memory_order_acquire) && slot.lane->busy()) busy[count++] = slot.lane.get();
  }
  if (count == 1) return busy[0]->try_step(until);
  bool helped = false;
  for (Lane* const lane : std::span(busy).first(count)) {
    helped |= lane->try_step(std::min<TimePoint>(until, Clock::now() + turn));
  }
  return helped;
}

void LaneSet::wake_caretaker() {
  if (caretaker_sleeps_.exchange(false)) caretaker_wakes_.notify_one();
}

// REQUIRES: the mutex is held, and no other thread works on them.
void LaneSet::work_on_stuck_lanes() {
  for (std::size_t i = stuck_.size(); i-- > 0;) {
    stuck_[i].lane->try_step(TimePoint::min());
    if (stuck_[i].lane->has_orphans()) continue;
    stuck_[i].of->free.push_back(std::move(stuck_[i].lane));
    stuck_.erase(stuck_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void LaneSet::work_on_callers_lanes(const std::stop_token& stop) {
  int idle = 0;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (idle > caretaker_idle_periods) {
      caretaker_sleeps_ = true;
      caretaker_wakes_.wait(lock, stop, [this] { return !caretaker_sleeps_.load(); });
      idle = 0;
    }
    caretaker_wakes_.wait_for(lock, stop, caretaker_period, [] { return false; });
    ++idle;
    if (!stuck_.empty()) {
      idle = 0;
      work_on_stuck_lanes();
    }
    for (const CallersLane& slot : callers_lanes_) {
      if (!slot.lane || !slot.lane->busy()) continue;
      lock.unlock();
      slot.lane->work_if_left();
      idle = 0;
      lock.lock();
    }
  }
}

std::shared_ptr<Lane> LaneSet::take(DrivenLanes& lanes) {
  {
    const std::scoped_lock lock(mutex_);
    if (closed_) return nullptr;
    if (!lanes.free.empty()) {
      auto lane = std::move(lanes.free.back());
      lanes.free.pop_back();
      return lane;
    }
    if (lanes.made == lanes.most) return nullptr;
    ++lanes.made;
  }
  LaneSettings settings = lane_settings(environment_->options);
  settings.runner = Runner::one_caller;
  settings.depth = lanes.depth;
  settings.staging_bytes = lanes.staging_bytes;
  settings.long_slots = lanes.slots;
  settings.is_inline = lanes.is_inline;
  settings.flow_shares = lanes.flow_shares;
  std::shared_ptr<Lane> lane;
  const Status made = or_out_of_memory([&] {
    lane = std::make_shared<Lane>(environment_, settings, nullptr);
    return Status();
  });
  if (made) return lane;
  const std::scoped_lock lock(mutex_);
  --lanes.made;
  return nullptr;
}

void LaneSet::put_back(DrivenLanes& lanes, std::shared_ptr<Lane> lane) {
  const std::scoped_lock lock(mutex_);
  if (!lane->has_orphans()) {
    lanes.free.push_back(std::move(lane));
    return;
  }
  stuck_.push_back({std::move(lane), &lanes});
  // Without a caretaker they come home when the Context is closed.
  if (!closed_ && ensure_caretaker()) wake_caretaker();
}

bool LaneSet::drive(const std::shared_ptr<Request>& request, const std::function<bool()>& keep_going) {
  return fits_callers_lane(*request) && drive_on(driven_, request, keep_going);
}

bool LaneSet::drive_alone(const std::shared_ptr<Request>& request, const std::function<bool()>& keep_going) {
  if (!request->is_for_one_lane()) return false;
  return drive_on(request->direction == Direction::write ? long_driven_ : direct_driven_, request, keep_going);
}

bool LaneSet::drive_on(DrivenLanes& lanes, const std::shared_ptr<Request>& request,
                       const std::function<bool()>& keep_going) {
  auto lane = take(lanes);
  if (!lane) return false;
  cuda::Device* const gpu = request->spans[0].gpu;
  const bool ready = gpu == nullptr || lane->get_ready(*gpu, request->staged_toward()).ok();
  if (ready) {
    Part& part = request->parts[0];
    part.hold = request;
    lane->drive(part, keep_going);
  }
  put_back(lanes, std::move(lane));
  return ready;
}

bool LaneSet::drive_while_cached(const std::shared_ptr<Request>& request, const std::function<bool()>& keep_going) {
  cuda::Device* const gpu = request->gpu_for_caller();
  auto lane = gpu != nullptr ? take(long_driven_) : nullptr;
  if (!lane) return false;
  if (!lane->get_ready(*gpu, request->staged_toward())) {
    put_back(long_driven_, std::move(lane));
    return false;
  }
  Part& own = request->parts[0];
  own.hold = request;
  own.lane = lane;
  request->begin_on_caller(*gpu);
  lane->drive(own, keep_going);
  put_back(long_driven_, std::move(lane));
  if (request->has_more_units() && request->stop_code() == Code::ok) hand_on(request);
  if (request->leave() && request->conclude(request, Clock::now())) request->wake_waiters();
  environment_->ends.announce();
  return true;
}

// What was not cached is for lanes that need not wait for each operation.
void LaneSet::hand_on(const std::shared_ptr<Request>& request) {
  {
    const std::scoped_lock lock(mutex_);
    if (closed_ || !give_lanes(*request, 1)) {
      request->stop_because(closed_ ? Error{Code::closed, 0, "the Context is closing", ""} : no_thread());
      return;
    }
    request->add_other_parts();
    post(request, 1);
  }
  request->wake_next_lanes();
}

bool LaneSet::replace(std::uint32_t slot) {
  const std::scoped_lock lock(mutex_);
  collect_ended();
  if (closed_ || replaced_ == size_) return false;
  Worker successor;
  const Status made = or_out_of_memory([&] {
    retired_.reserve(retired_.size() + 1);
    return successor = make_worker(slot), Status();
  });
  if (!made || !ensure_started(successor)) return false;
  ++replaced_;
  environment_->lanes_replaced.fetch_add(1, std::memory_order_relaxed);
  retired_.push_back(std::exchange(workers_[slot], std::move(successor)));
  // Where there is no memory for it, it prepares when it needs to.
  static_cast<void>(or_out_of_memory([&] {
    for (cuda::Device* gpu : prepared_) {
      workers_[slot].lane->prepare(*gpu, std::make_shared<std::atomic<std::uint32_t>>(0));
    }
    return Status();
  }));
  return true;
}

void LaneSet::collect_ended() {
  std::erase_if(retired_, [this](Worker& worker) {
    if (worker.ended->load(std::memory_order_acquire) == 0) return false;
    worker.thread.join();
    --replaced_;
    return true;
  });
}

void LaneSet::close() {
  std::vector<Worker> workers;
  std::vector<Worker> retired;
  std::vector<Stuck> stuck;
  std::jthread caretaker;
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    caretaker = std::move(caretaker_);
    workers.swap(workers_);
    retired.swap(retired_);
    driven_.free.clear();
    long_driven_.free.clear();
    stuck.swap(stuck_);
  }
  if (caretaker.joinable()) {
    caretaker.request_stop();
    caretaker.join();
  }
  for (const auto* all : {&workers, &retired}) {
    for (const Worker& worker : *all) {
      if (worker.lane) worker.lane->close();
    }
  }
  const auto for_lanes_of_callers = [&](const auto& action) {
    for (const Stuck& one : stuck) action(one.lane);
    for (const CallersLane& slot : callers_lanes_) {
      if (slot.lane) action(slot.lane);
    }
  };
  for_lanes_of_callers([](const std::shared_ptr<Lane>& lane) { lane->close(); });
  const TimePoint deadline = Clock::now() + duration_from_seconds(environment_->options.deadlines.close_seconds);
  for_lanes_of_callers([&](const std::shared_ptr<Lane>& lane) {
    if (lane->finish(deadline)) return;
    log(LogLevel::warning, leaked_message);
    if (!leave_to_thread([lane] { lane->finish(TimePoint::max()); })) keep_for_ever(lane);
  });
  for (auto* all : {&workers, &retired}) {
    for (Worker& worker : *all) end_thread(worker, deadline);
  }
}

void LaneSet::end_thread(Worker& worker, TimePoint deadline) {
  if (!worker.thread.joinable()) return;
  // A function of the program that runs on a lane may drop the last Context: a thread can not wait for itself.
  if (worker.thread.get_id() == std::this_thread::get_id()) return worker.thread.detach();
  while (worker.ended->load(std::memory_order_acquire) == 0 && Clock::now() < deadline) {
    futex_wait_until(*worker.ended, 0, deadline);
  }
  if (worker.ended->load(std::memory_order_acquire) != 0) {
    worker.thread.join();
  } else {
    log(LogLevel::warning, leaked_message);
    worker.thread.detach();
  }
}

}  // namespace penstock::core
