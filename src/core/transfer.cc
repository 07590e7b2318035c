// The lane's second half: operations on their way, what comes back, and what to do about it.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "core/lane.h"

namespace penstock::core {

using engine::Done;
using engine::OpKind;
using engine::Path;

namespace {

constexpr std::uint8_t most_attempts = 32;
constexpr Duration first_backoff = std::chrono::microseconds(50);
constexpr Duration longest_backoff = std::chrono::milliseconds(10);
constexpr Duration block_wait = std::chrono::microseconds(100);
constexpr Duration between_warnings = std::chrono::seconds(1);

// Cancelling can't recall what a disk has in its queue, so the queue is kept as short as the disk is slow. (What
// waits for a thread of a blocking engine can be recalled.)
constexpr Duration slow_operation = std::chrono::milliseconds(80);
constexpr Duration quick_operation = std::chrono::milliseconds(40);

Route main_route(const RouteBytes& routes) {
  return static_cast<Route>(std::ranges::max_element(routes) - routes.begin());
}

bool is_transient(const Done& done) {
  return done.system_error == EAGAIN || done.system_error == EINTR;
}
bool refuses_direct(const Done& done) {
  return done.system_error == EINVAL || done.system_error == EOPNOTSUPP;
}

// How many of the bytes [from, to) of an operation are bytes of the piece that begins at `lead`.
std::uint64_t overlap(std::uint64_t from, std::uint64_t to, std::uint64_t lead, std::uint64_t length) {
  const std::uint64_t begin = std::max(from, lead);
  const std::uint64_t end = std::min(to, lead + length);
  return end > begin ? end - begin : 0;
}

}  // namespace

std::uint32_t Lane::store_of(const Flight& flight) {
  return flight.phase == Phase::flush ? flight.range : flight.part->hold->spans[flight.range].store;
}

bool Lane::may_buffer(const Flight& flight) const {
  const Request& request = *flight.part->hold;
  return may_be_buffered(request, *flight.entry, request.spans[flight.range]);
}

Lane::EngineQueue* Lane::queue_of(std::size_t engine) {
  EngineQueue& queue = queues_[engine];
  if (queue.queue) return &queue;
  const Status made = or_out_of_memory([&] { return make_queue(engine); });
  if (made) return &queue;
  log(LogLevel::error, made.error().message);
  queue_failure_ = made.error().code;
  return nullptr;
}

Status Lane::make_queue(std::size_t engine) {
  EngineQueue& queue = queues_[engine];
  engine::Engine& maker = *(*environment_->engines)[engine];
  const bool can_inline = maker.description().inline_queue;
  engine::QueueOptions options{settings_.depth, settings_.threads, settings_.runner == Runner::one_caller && can_inline,
                               environment_->pinned};
  auto made = maker.make_queue(options);
  if (!made && can_inline && !options.run_inline) {
    log(LogLevel::warning, made.error().message + "; operations run one after another instead");
    options.run_inline = true;
    made = maker.make_queue(options);
  }
  if (!made) return std::move(made).error();
  queue.batch.reserve(settings_.depth);
  queue.queue = std::move(*made);
  return {};
}

Result<StagingArena*> Lane::staging() {
  if (StagingArena* const made = made_staging_.load(std::memory_order_acquire)) return made;
  const std::scoped_lock lock(staging_mutex_);
  if (staging_) return staging_.get();
  // Each time anew: the caller may have freed pinned memory meanwhile.
  auto allocation = memory::Allocation::create(
      {.domain = Domain::host(), .size_bytes = settings_.staging_bytes, .budget = environment_->pinned});
  if (!allocation) {
    Error error = std::move(allocation).error();
    error.message = "no staging memory: " + error.message;
    const TimePoint now = Clock::now();
    if (now - staging_warned_ >= between_warnings) {
      log(LogLevel::warning, error.message);
      staging_warned_ = now;
    }
    return error;
  }
  staging_ = std::make_unique<StagingArena>(std::move(*allocation));
  made_staging_.store(staging_.get(), std::memory_order_release);
  return staging_.get();
}

engine::MemoryKey Lane::staging_key(std::size_t engine) {
  if (!staging_keys_[engine]) {
    const auto key = (*environment_->engines)[engine]->attach(staging_->region());
    staging_keys_[engine] = key ? *key : engine::MemoryKey{};
  }
  return *staging_keys_[engine];
}

// Bytes to be written are fetched into staging memory first, where they go through it.
void Lane::begin(std::uint32_t index, TimePoint now) {
  const Flight& flight = flights_[index];
  const bool fetch =
      flight.phase == Phase::transfer && flight.staging.data != nullptr && flight.op.kind == OpKind::write;
  if (fetch && flight.gpu != nullptr) {
    copy(index, cuda::Toward::host);
    return;
  }
  if (fetch) std::memcpy(flight.staging.data, flight.user, flight.length);
  send(index, now);
}

void Lane::send(std::uint32_t index, TimePoint now) {
  Flight& flight = flights_[index];
  if (flight.phase == Phase::lock_block) {
    begin_block(index, now);
    return;
  }
  engine::Op& op = flight.op;
  if (flight.phase != Phase::flush) {
    std::byte* base = flight.staging.data != nullptr ? flight.staging.data : flight.user;
    op.offset = flight.offset - flight.lead + flight.moved;
    op.length = flight.span_bytes - flight.moved;
    op.memory = base != nullptr ? base + flight.moved : nullptr;
  }
  op.cookie = std::uint64_t{flight.generation} << 32 | index;
  flight.submitted = now;
  queues_[flight.entry->engine()].batch.push_back(op);
}

void Lane::begin_block(std::uint32_t index, TimePoint now) {
  Flight& flight = flights_[index];
  StoreEntry& entry = *flight.entry;
  if (!entry.blocks().try_lock(flight.offset - flight.lead)) {
    retry_later(index, now + block_wait);
    return;
  }
  flight.holds_block = true;
  flight.phase = Phase::read_block;
  flight.op.kind = OpKind::read;
  send(index, now);
}

void Lane::on_done(std::size_t engine, const Done& done, TimePoint now) {
  const auto index = static_cast<std::uint32_t>(done.cookie);
  if (index >= flights_.size() || !flights_[index].in_queue || flights_[index].generation != done.cookie >> 32) {
    log(LogLevel::error, "an engine completed an operation that was not in flight; it is ignored");
    return;
  }
  Flight& flight = flights_[index];
  flight.in_queue = false;
  --queues_[engine].in_queue;
  const Duration latency = now - flight.submitted;
  const bool is_staged = flight.gpu != nullptr && flight.op.path != Path::device;
  const Route route = is_staged ? staged(done.route) : done.route;
  // What has no memory goes no way; it only takes its time.
  const std::uint64_t moved = engine::moves_bytes(flight.op.kind) ? done.bytes : 0;
  if (flight.phase != Phase::flush) {
    statistics_->record(engine, route, moved, static_cast<std::uint64_t>(std::chrono::nanoseconds(latency).count()),
                        done.code == Code::ok);
  }
  if (trace_ != nullptr) trace_->add_transfer(TraceKind::storage, flight.submitted, now, moved, route);
  if (flight.op.path == Path::direct && flight.user != nullptr) adapt_depth(latency, now);
  if (flight.in_window && done.bytes >= flight.length && flight.length == window_.piece_bytes()) {
    const bool remote = is_remote(flight.entry->info().locality);
    ShortestLatency& shortest = remote ? environment_->shortest_remote : environment_->shortest_local;
    window_.note(flight.length, latency, shortest.with(flight.length, latency));
  }
  if (flight.orphan) {
    on_orphan_home(index);
    return;
  }
  Part& part = *flight.part;
  part.last_progress = now;
  if (done.code == Code::ok) {
    on_moved(index, done.bytes, route, now);
  } else {
    on_failed(index, done, now);
  }
  settle(part);
}

void Lane::on_orphan_home(std::uint32_t index) {
  const std::uint64_t bytes = flights_[index].quarantined_bytes;
  --orphans_;
  free_flight(index);
  environment_->quarantined_bytes.fetch_sub(bytes, std::memory_order_relaxed);
}

void Lane::on_moved(std::uint32_t index, std::uint64_t bytes, Route route, TimePoint now) {
  Flight& flight = flights_[index];
  if (flight.phase == Phase::flush) {
    ++flight.part->stores_flushed;
    --flight.part->in_flight;
    free_flight(index);
    return;
  }
  const std::uint64_t before = flight.moved;
  flight.moved = std::min(before + bytes, flight.span_bytes);
  const bool whole_block = flight.phase == Phase::read_block || flight.phase == Phase::write_block;
  const std::uint64_t needed = whole_block ? flight.span_bytes : flight.lead + flight.length;
  const auto count_route = [&](std::uint64_t from) {
    if (flight.user == nullptr) return;  // what has no memory takes none
    flight.routes[static_cast<std::size_t>(route)] += overlap(from, flight.moved, flight.lead, flight.length);
  };
  if (flight.phase != Phase::read_block) count_route(before);
  if (flight.moved >= needed && flight.phase != Phase::read_block) {
    finish_piece(index);
    return;
  }
  if (flight.part->grace_end != TimePoint::max()) {
    // The request was stopped: what is not finished is not continued.
    --flight.part->in_flight;
    free_flight(index);
    return;
  }
  if (flight.moved >= needed) {
    write_back_block(index, now);
    return;
  }
  if (bytes == 0) {
    fail_piece(index, flight.op.kind == OpKind::read ? Code::truncated : Code::no_space, 0);
    return;
  }
  StoreEntry& entry = *flight.entry;
  const std::uint64_t alignment = entry.alignment(flight.part->hold->direction);
  const bool whole_blocks = flight.op.path == Path::direct || flight.op.path == Path::device;
  if (whole_blocks && flight.moved % alignment != 0) {
    // A direct operation can't go on in the middle of a block; the page cache can. Without one, the block is redone.
    if (flight.op.path == Path::direct && may_buffer(flight) && !whole_block) {
      flight.op.path = Path::buffered;
      flight.span_bytes = needed;
    } else {
      flight.moved = align_down(flight.moved, alignment);
      flight.routes = {};
      count_route(0);
    }
  }
  if (flight.moved > before) {
    flight.attempts = 0;
  } else if (++flight.attempts == most_attempts) {
    fail_piece(index, flight.op.kind == OpKind::read ? Code::truncated : Code::no_space, 0);
    return;
  }
  send(index, now);
}

void Lane::write_back_block(std::uint32_t index, TimePoint now) {
  const Flight& flight = flights_[index];
  if (flight.gpu != nullptr) {
    copy(index, cuda::Toward::host);
    return;
  }
  std::byte* const place = flight.staging.data + flight.lead;
  if (flight.user != nullptr) {
    std::memcpy(place, flight.user, flight.length);
  } else {
    std::memset(place, 0, flight.length);
  }
  write_block(index);
  send(index, now);
}

void Lane::write_block(std::uint32_t index) {
  Flight& flight = flights_[index];
  flight.phase = Phase::write_block;
  flight.op.kind = OpKind::write;
  flight.moved = 0;
}

void Lane::on_failed(std::uint32_t index, const Done& done, TimePoint now) {
  Flight& flight = flights_[index];
  if (flight.part->grace_end != TimePoint::max()) {
    --flight.part->in_flight;
    free_flight(index);
    return;
  }
  if (is_transient(done) && ++flight.attempts < most_attempts) {
    const Duration backoff = std::min(longest_backoff, first_backoff * (1 << std::min<int>(flight.attempts, 10)));
    retry_later(index, done.system_error == EINTR ? now : now + backoff);
    return;
  }
  StoreEntry& entry = *flight.entry;
  const bool may_go_around =
      flight.op.path == Path::direct && flight.phase == Phase::transfer && flight.user != nullptr;
  if (may_go_around && refuses_direct(done) && may_buffer(flight)) {
    entry.refuse_direct();
    flight.reason = Reason::refused;
    flight.op.path = Path::buffered;
    flight.span_bytes = flight.lead + flight.length;
    send(index, now);
    return;
  }
  fail_piece(index, done.code, done.system_error);
}

void Lane::retry_later(std::uint32_t index, TimePoint at) {
  flights_[index].retry_at = at;
  retries_.push_back(index);
}

void Lane::send_due_retries(TimePoint now) {
  // Sending may put a flight back at the end of the list, so only those that were there are looked at.
  std::size_t left = retries_.size();
  for (std::size_t i = 0; left > 0; --left) {
    const std::uint32_t index = retries_[i];
    if (flights_[index].retry_at > now) {
      ++i;
      continue;
    }
    retries_.erase(retries_.begin() + static_cast<std::ptrdiff_t>(i));
    send(index, now);
  }
}

// Storage has done its part.
void Lane::finish_piece(std::uint32_t index) {
  Flight& flight = flights_[index];
  // From here on the slot is what limits, not the disk.
  bytes_in_flight_ -= std::exchange(flight.weight_bytes, 0);
  if (std::exchange(flight.fills_slot, false)) --slots_filling_;
  if (flight.staging.data != nullptr && flight.op.kind == OpKind::read) {
    if (flight.gpu != nullptr) {
      copy(index, cuda::Toward::device);
      return;
    }
    std::memcpy(flight.user, flight.staging.data + flight.lead, flight.length);
  }
  account_piece(index);
}

void Lane::account_piece(std::uint32_t index) {
  Flight& flight = flights_[index];
  Part& part = *flight.part;
  for (std::size_t i = 0; i < route_count; ++i) part.routes[i] += flight.routes[i];
  if (part.hold->direction == Direction::read) part.extra_bytes += flight.moved - std::min(flight.moved, flight.length);
  part.reasons[static_cast<std::size_t>(reason_after(flight.reason, main_route(flight.routes)))] += flight.length;
  part.bytes.store(part.bytes.load(std::memory_order_relaxed) + flight.length, std::memory_order_relaxed);
  --part.in_flight;
  free_flight(index);
}

void Lane::fail_piece(std::uint32_t index, Code code, std::int32_t system_error, const Error* cause) {
  Flight& flight = flights_[index];
  add_failure(*flight.part, {flight.range, flight.offset, flight.length, code, system_error}, cause);
  --flight.part->in_flight;
  free_flight(index);
}

void Lane::add_failure(Part& part, Failure failure, const Error* cause) {
  // The numbers of CUDA go with its own codes only: elsewhere they would be read as the system's.
  const bool is_of_cuda = failure.code == Code::device_error || failure.code == Code::device_lost;
  if (cause != nullptr && is_of_cuda) failure.system_error = cause->system_error;
  or_stop(part, [&] {
    if (part.failure_count == 0 && cause != nullptr) part.first_cause = std::make_unique<Error>(*cause);
    if (part.failures.size() < Request::failures_kept) part.failures.push_back(failure);
    ++part.failure_count;
  });
}

void Lane::free_flight(std::uint32_t index) {
  Flight& flight = flights_[index];
  if (flight.holds_block) flight.entry->blocks().unlock(flight.offset - flight.lead);
  if (flight.staging.data != nullptr) staging_->give_back(flight.staging);
  bytes_in_flight_ -= flight.weight_bytes;
  if (flight.fills_slot) --slots_filling_;
  leave_window(flight);
  const std::uint32_t generation = flight.generation + 1;
  flight = Flight{};
  flight.generation = generation;
  free_.push_back(index);
}

void Lane::leave_window(Flight& flight) {
  if (std::exchange(flight.in_window, false)) window_.end(flight.length);
}

void Lane::adapt_depth(Duration latency, TimePoint now) {
  if (latency > slow_operation) {
    // Once for each time that what was in flight at the last change has come back.
    if (now - depth_changed_ < latency) return;
    bytes_allowed_ = std::max(environment_->options.storage_chunk_bytes, bytes_allowed_ / 2);
    depth_changed_ = now;
  } else if (latency < quick_operation && bytes_allowed_ < settings_.bytes_in_flight) {
    bytes_allowed_ = std::min(settings_.bytes_in_flight, bytes_allowed_ + environment_->options.storage_chunk_bytes);
  }
}

}  // namespace penstock::core
