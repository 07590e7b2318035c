// The lane's third part: copies between staging memory and GPUs. Storage fills one slot while a copy engine empties
// another.
#include <algorithm>
#include <cstring>

#include "base/futex.h"
#include "base/log.h"
#include "core/lane.h"

namespace penstock::core {

using cuda::CopyQueue;
using cuda::Toward;

namespace {

// Small copies are given to the GPU many together; from this size on, each by itself, so that its slot is free as soon
// as it has been copied.
constexpr std::size_t worth_issuing_copies = 32;
constexpr std::size_t worth_issuing_bytes = 256 << 10;

// A caller who waits for one small copy looks again at once; a lane sleeps in between.
constexpr Duration spin_time = std::chrono::microseconds(50);
constexpr Duration shortest_look = std::chrono::microseconds(20);
constexpr Duration longest_look = std::chrono::microseconds(100);

// To register memory, while streams wait.
constexpr Duration between_tries = std::chrono::milliseconds(1);

}  // namespace

void Lane::prepare(cuda::Device& gpu, std::shared_ptr<std::atomic<std::uint32_t>> left) {
  left->fetch_add(1, std::memory_order_relaxed);
  unprepared_.store(false, std::memory_order_relaxed);
  {
    const std::scoped_lock lock(prepare_mutex_);
    to_prepare_.push_back({&gpu, std::move(left)});
  }
  attend();
}

void Lane::prepare_gpus(TimePoint now) {
  std::vector<ToPrepare> all;
  {
    const std::scoped_lock lock(prepare_mutex_);
    all.swap(to_prepare_);
  }
  for (ToPrepare& one : all) {
    const auto is_done = [&](Toward toward) {
      const Status status = get_ready(*one.gpu, toward);
      if (status) return true;
      if (status.error().code == Code::would_deadlock) return false;
      if (status.error().code == Code::over_budget) {
        // Others do its work until there is room; staging() has warned.
        unprepared_.store(true, std::memory_order_relaxed);
      } else {
        log(LogLevel::error, status.error().message);
      }
      return true;
    };
    if (is_done(Toward::device) && is_done(Toward::host)) {
      if (one.left->fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(*one.left);
      continue;
    }
    next_look_ = std::min(next_look_, now + between_tries);
    const std::scoped_lock lock(prepare_mutex_);
    to_prepare_.push_back(std::move(one));
  }
}

Lane::GpuCopies& Lane::copies_of(cuda::Device& gpu) {
  const auto found =
      std::find_if(gpus_.begin(), gpus_.end(), [&](const GpuCopies& copies) { return copies.gpu == &gpu; });
  return found != gpus_.end() ? *found : gpus_.emplace_back(GpuCopies{.gpu = &gpu});
}

Status Lane::get_ready(cuda::Device& gpu, Toward toward) {
  auto& queue = copies_of(gpu).toward(toward);
  if (queue) return {};
  const TimePoint begun = Clock::now();
  const double cpu_begun = thread_cpu_seconds();
  auto made = make_copies(gpu, toward);
  // What is made once is neither the disk's time nor the bus's, so it counts for no request.
  for (Part* part : active_) {
    part->entered += Clock::now() - begun;
    part->cpu_seconds_at_entry += thread_cpu_seconds() - cpu_begun;
  }
  if (!made) return std::move(made).error();
  queue = std::move(*made);
  ready_.store(true, std::memory_order_relaxed);
  return {};
}

Result<std::unique_ptr<CopyQueue>> Lane::make_copies(cuda::Device& gpu, Toward toward) {
  auto arena = staging();
  if (!arena) return std::move(arena).error();
  if (auto status = (*arena)->register_with(gpu); !status) {
    if (status.error().code == Code::would_deadlock) return std::move(status).error();
    log(LogLevel::warning, status.error().message + "; copies to and from the GPU are slower");
  }
  return CopyQueue::create(gpu,
                           {.toward = toward, .depth = settings_.depth, .host_to_device = (*arena)->host_to_device()});
}

// Between the piece's place in staging memory and the GPU's; on_copied goes on. REQUIRES: get_ready was ok for it.
void Lane::copy(std::uint32_t index, Toward toward) {
  Flight& flight = flights_[index];
  CopyQueue* const queue = copies_of(*flight.gpu).toward(toward).get();
  if (copying_++ == 0) copies_moved_ = Clock::now();
  if (trace_ != nullptr) flight.submitted = Clock::now();
  flight.copying = true;
  queue->add({.host = flight.staging.data + flight.lead,
              .device = flight.user,
              .bytes = flight.length,
              .cookie = std::uint64_t{flight.generation} << 32 | index});
  if (flight.length >= worth_issuing_bytes) queue->issue();
}

void Lane::issue_copies(bool all) {
  if (copying_ == 0) return;
  for (GpuCopies& copies : gpus_) {
    for (CopyQueue* queue : {copies.to_device.get(), copies.to_host.get()}) {
      if (queue == nullptr) continue;
      const bool worth_it = queue->added() >= worth_issuing_copies || queue->added_bytes() >= worth_issuing_bytes;
      if (worth_it || all) queue->issue();
    }
  }
}

std::size_t Lane::copies_added() const {
  std::size_t count = 0;
  for (const GpuCopies& copies : gpus_) {
    for (const CopyQueue* queue : {copies.to_device.get(), copies.to_host.get()}) {
      if (queue != nullptr) count += queue->added();
    }
  }
  return count;
}

std::size_t Lane::collect_copies() {
  std::size_t found = 0;
  for (GpuCopies& copies : gpus_) {
    for (CopyQueue* queue : {copies.to_device.get(), copies.to_host.get()}) {
      if (queue == nullptr || queue->pending() == 0) continue;
      const std::size_t count = queue->collect(copied_);
      if (count == 0) continue;
      found += count;
      const TimePoint now = Clock::now();
      // Copies of other lanes go over the same bus: the more there are, the longer each takes.
      between_looks_ = std::clamp<Duration>((now - copies_moved_) / 8, shortest_look, longest_look);
      copies_moved_ = now;
      for (std::size_t i = 0; i < count; ++i) on_copied(copied_[i], copies_moved_);
    }
  }
  if (found != 0) wake_waiters();
  return found;
}

void Lane::on_copied(const cuda::CopyDone& done, TimePoint now) {
  const auto index = static_cast<std::uint32_t>(done.cookie);
  Flight& flight = flights_[index];
  flight.copying = false;
  --copying_;
  if (trace_ != nullptr) trace_->add_transfer(TraceKind::copy, flight.submitted, now, flight.length, Route::buffered);
  if (flight.orphan) {
    on_orphan_home(index);
    return;
  }
  Part& part = *flight.part;
  part.last_progress = now;
  if (done.result != cuda::cu_success) {
    const char* const way = part.hold->direction == Direction::read ? "copy to " : "copy from ";
    const Error cause = flight.gpu->driver().error(done.result, way + flight.gpu->info().domain.name());
    fail_piece(index, cause.code, 0, &cause);
  } else if (part.hold->direction == Direction::read) {
    account_piece(index);
  } else if (part.grace_end != TimePoint::max()) {
    // The request was stopped: what is not written is not begun.
    --part.in_flight;
    free_flight(index);
  } else {
    if (flight.phase == Phase::read_block) write_block(index);
    send(index, now);
  }
  settle(part);
}

// Sleeps no longer than the copies may take. What storage brings meanwhile is collected too.
void Lane::wait_for_copies(TimePoint until) {
  const TimePoint begun = Clock::now();
  std::uint32_t in_queue = 0;
  for (const EngineQueue& queue : queues_) in_queue += queue.in_queue;
  if (in_queue != 0) {
    // Small copies wait for more of their kind while storage has some at hand.
    const std::size_t added = copies_added();
    const bool found = added != 0 && collect_from_engines(TimePoint::min()) != 0;
    if (found && copies_added() > added) return;
    issue_copies(true);
    if (!found) collect_from_engines(std::min(until, begun + between_looks_));
    watch_streams(Clock::now());
    return;
  }
  issue_copies(true);
  const bool spins = settings_.runner != Runner::own_thread;
  TimePoint now = begun;
  while (collect_copies() == 0 && spins && now < std::min(until, begun + spin_time)) now = Clock::now();
  if (copying_ != 0 && copies_moved_ < begun) sleep_idle(std::min(until, Clock::now() + between_looks_));
  now = Clock::now();
  copy_seconds_ += seconds_between(begun, now);
  if (trace_ != nullptr) trace_->add_wait(TraceKind::waits_for_copies, begun, now);
  watch_streams(now);
}

// The part can't go on before no stream waits. If its own stream does, neither would ever move.
Lane::CutResult Lane::put_off(Part& part, TimePoint now) {
  const double limit = environment_->options.deadlines.stream_seconds;
  const bool too_long = limit > 0 && now - part.last_progress >= duration_from_seconds(limit);
  if ((part.hold->order || too_long) && part.hold->stop_code() == Code::ok) {
    log(LogLevel::warning, "a lane can't register memory while streams wait; a request that needs it is ended");
    part.hold->stop_for_registration();
  }
  next_look_ = std::min(next_look_, now + between_tries);
  return CutResult::put_off;
}

// A stream that waits for us may stand in the hardware's queue before our copies; then neither ever moves.
void Lane::watch_streams(TimePoint now) {
  const double limit = environment_->options.deadlines.stream_seconds;
  if (limit <= 0 || copying_ == 0 || now - copies_moved_ < duration_from_seconds(limit)) return;
  const bool streams_wait =
      std::any_of(gpus_.begin(), gpus_.end(), [](const GpuCopies& copies) { return copies.gpu->stream_waits() != 0; });
  if (!streams_wait) return;
  log(LogLevel::warning, "copies make no progress while streams wait for them; requests in stream order are ended");
  environment_->streams.break_all();
  copies_moved_ = now;
}

}  // namespace penstock::core
