#include "core/ordered_transfer.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "core/cut.h"
#include "core/environment.h"
#include "core/lane_set.h"
#include "engine/op.h"

namespace penstock::core {

using cuda::CuResult;

namespace {

constexpr std::uint64_t whole_block_bytes = 4096;
// Put on the stream before the watching thread knows the request: more may not fit what the driver queues for a stream.
constexpr std::uint32_t enqueued_first = 64;
// So many short copies are worth a kernel.
constexpr std::size_t worth_a_kernel = 4;
constexpr std::uint64_t short_copy_bytes = 32 << 10;
// Without progress for so long, the stream may have failed.
constexpr Duration between_questions = std::chrono::milliseconds(5);
constexpr Duration patience_at_close = std::chrono::milliseconds(100);
constexpr Duration between_looks_at_close = std::chrono::microseconds(100);

constexpr std::uint32_t reached_mark = 1;
constexpr std::uint32_t mark_of(std::uint32_t chunk) {
  return chunk + 2;
}

bool is_whole_blocks(const Span& span) {
  return span.offset % whole_block_bytes == 0 && span.length % whole_block_bytes == 0;
}

// Whether a range of an inner request failed, or may have.
bool has_failed(const Request& inner, std::uint64_t range) {
  return std::ranges::any_of(inner.parts, [&](const Part& part) {
    return part.failure_count > part.failures.size() ||
           std::ranges::any_of(part.failures, [&](const Failure& failure) { return failure.range == range; });
  });
}

// A stream may copy to or from its slots at any time.
void keep_for_ever(const std::shared_ptr<SlotPool>& pool) {
  struct Kept {
    std::shared_ptr<SlotPool> pool;
    Kept* next;
  };
  static constinit std::mutex mutex;
  static constinit Kept* last = nullptr;
  const std::scoped_lock lock(mutex);
  if (auto* const kept = new (std::nothrow) Kept{pool, last}) last = kept;
}

// What a stream may still copy from when its Context is gone. It is looked through when the next one is left behind.
class LeftBehind {
 public:
  static void add(std::shared_ptr<OrderedTransfer> transfer) {
    static constinit std::mutex mutex;
    static auto* const all = new std::vector<std::shared_ptr<OrderedTransfer>>;
    const std::scoped_lock lock(mutex);
    std::erase_if(*all, [](const auto& one) { return one->is_over(); });
    all->push_back(std::move(transfer));
  }
};

}  // namespace

bool OrderedTransfer::is_possible(const Request& request, const cuda::Device& gpu) {
  if (!cuda::StreamSteps::is_supported(gpu) || !request.needs_staging || request.total_bytes == 0) return false;
  if (!engine::moves_bytes(request.kind) || request.asks_for_ranges()) return false;
  const auto from_host = [](const StoreUse& use) { return use.entry->from_host(); };
  if (!std::ranges::all_of(request.stores, from_host)) return false;
  if (request.transforms == nullptr) return true;
  // What is stored lies in a lane's staging memory, with the blocks that it begins and ends in.
  const std::uint64_t staging = request.environment().options.staging_slot_bytes;
  return std::ranges::all_of(request.transforms->uses, [&](const TransformUse& use) {
    return use.stored.bytes + 2 * SlotPool::granule_bytes <= staging;
  });
}

std::shared_ptr<OrderedTransfer> OrderedTransfer::create(std::shared_ptr<Request> request, cuda::Device& gpu,
                                                         std::shared_ptr<LaneSet> lanes, std::shared_ptr<SlotPool> pool,
                                                         SlotPool::Slots slots) {
  auto chunks = cut_into_chunks({request->spans.begin(), request->spans.end()}, slots.bytes);
  if (!chunks) {
    pool->give_back(slots);
    return nullptr;
  }
  return std::shared_ptr<OrderedTransfer>(new OrderedTransfer(std::move(request), gpu, std::move(lanes),
                                                              std::move(pool), std::move(slots), std::move(*chunks)));
}

OrderedTransfer::OrderedTransfer(std::shared_ptr<Request> request, cuda::Device& gpu, std::shared_ptr<LaneSet> lanes,
                                 std::shared_ptr<SlotPool> pool, SlotPool::Slots slots, OrderedChunks chunks)
    : request_(std::move(request)),
      lanes_(std::move(lanes)),
      pool_(std::move(pool)),
      slots_(std::move(slots)),
      chunks_(std::move(chunks)),
      gpu_(gpu),
      direction_(request_->direction),
      states_(chunks_.chunks.size() + 1) {
  stores_.reserve(request_->stores.size());
  for (const StoreUse& use : request_->stores) stores_.push_back(client::Access::store(use.entry));
  // Ends of ranges that fill no whole block go through the page cache, when no direct write to it is in flight.
  is_one_by_one_ = !reads() && request_->spans.size() > 1 &&
                   !std::all_of(request_->spans.begin(), request_->spans.end(), is_whole_blocks);
}

OrderedTransfer::~OrderedTransfer() {
  const bool is_clean = !is_spoilt_ && (steps_ == nullptr || has_passed());
  if (is_clean) {
    pool_->give_back(slots_);
    for (const State& state : states_) {
      if (state.table.host != nullptr) cuda::ControlMemory::of_process().give_back(state.table);
    }
  } else {
    keep_for_ever(pool_);
  }
}

bool OrderedTransfer::has_passed() const {
  const std::uint32_t last = last_mark_.load(std::memory_order_acquire);
  return last != 0 && steps_->passed() >= last;
}

Error OrderedTransfer::error_of(CuResult result) const {
  return gpu_.driver().error(result, "put copies on a stream of " + gpu_.info().domain.name());
}

// One kernel for the short copies of a chunk.
void OrderedTransfer::make_tables() {
  for (std::uint32_t i = 0; i < size(); ++i) {
    const OrderedChunks::Chunk& chunk = chunks_.chunks[i];
    const auto& shift = slot_of(i).arena->host_to_device();
    const bool is_worth_it = chunk.count >= worth_a_kernel && chunk.bytes / chunk.count <= short_copy_bytes;
    if (!is_worth_it || !shift || gpu_.kernels()[cuda::Kernel::scatter] == nullptr) continue;
    auto table = cuda::ControlMemory::of_process().take(gpu_, chunk.count * sizeof(cuda::ScatterEntry));
    if (!table) return;
    states_[i].table = *table;
    auto* entry = reinterpret_cast<cuda::ScatterEntry*>(table->host);
    for (std::uint32_t s = chunk.first; s < chunk.first + chunk.count; ++s, ++entry) {
      const Slice& slice = chunks_.slices[s];
      const auto host = cuda::device_address(slot_of(i).data + slice.at + *shift);
      const auto device = cuda::device_address(request_->spans[slice.span].memory + slice.position);
      *entry = {reads() ? host : device, reads() ? device : host, slice.length};
    }
  }
}

Status OrderedTransfer::begin(void* stream) {
  auto order = cuda::StreamOrder::begin(gpu_, stream, cuda::StreamHold::none);
  if (!order) return std::move(order).error();
  request_->order = std::move(*order);
  stream_ = stream;
  asked_ = Clock::now();
  make_tables();
  auto steps = cuda::StreamSteps::begin(gpu_, stream, size() + 2);
  if (!steps) return std::move(steps).error();
  steps_ = std::move(*steps);
  const cuda::Current current(gpu_);
  CuResult result = steps_->mark(reached_mark);
  if (result == cuda::cu_success) result = enqueue_until(*request_, std::min(size(), enqueued_first));
  if (result == cuda::cu_success) {
    request_->parts[0].hold = request_;
    return {};
  }
  has_ended_ = true;
  break_off();
  return error_of(result);
}

void OrderedTransfer::enqueue_rest(const Request& request) {
  const cuda::Current current(gpu_);
  const CuResult result = enqueue_until(request, size());
  if (result == cuda::cu_success) return;
  {
    const std::scoped_lock lock(mutex_);
    failure_ = error_of(result);
  }
  break_off();
}

// REQUIRES: the device is current. The rest is left out if the request was stopped.
CuResult OrderedTransfer::enqueue_until(const Request& request, std::uint32_t end) {
  for (; next_to_enqueue_ < end; ++next_to_enqueue_) {
    if (request.stop_code() != Code::ok) return break_off();
    if (const CuResult result = enqueue_chunk(request, next_to_enqueue_); result != cuda::cu_success) return result;
  }
  if (end != size()) return cuda::cu_success;
  if (reads()) {
    last_mark_.store(mark_of(end - 1), std::memory_order_release);
    return cuda::cu_success;
  }
  const CuResult result = steps_->wait(end + 1);
  return result == cuda::cu_success ? mark_end() : result;
}

CuResult OrderedTransfer::enqueue_chunk(const Request& request, std::uint32_t chunk) {
  CuResult result = cuda::cu_success;
  const auto slots = static_cast<std::uint32_t>(slots_.blocks.size());
  if (reads()) {
    result = steps_->wait(chunk + 1);
  } else if (chunk >= slots) {
    result = steps_->wait(chunk - slots + 1);
  }
  if (result == cuda::cu_success) result = enqueue_copies(request, chunk);
  return result == cuda::cu_success ? steps_->mark(mark_of(chunk)) : result;
}

CuResult OrderedTransfer::enqueue_copies(const Request& request, std::uint32_t chunk) {
  const cuda::RelaxedApi& api = gpu_.api();
  const OrderedChunks::Chunk& one = chunks_.chunks[chunk];
  auto* const stream = static_cast<cuda::CuStream>(stream_);
  if (const cuda::ControlMemory::Cell& table = states_[chunk].table; table.host != nullptr) {
    cuda::CuFunction const kernel = gpu_.kernels()[cuda::Kernel::scatter];
    cuda::CuDevicePtr entries = table.device;
    unsigned blocks = one.count;
    void* parameters[] = {&entries, &blocks};
    return api.launch_kernel(kernel, blocks, 1, 1, cuda::kernel_threads, 1, 1, 0, stream, parameters, nullptr);
  }
  CuResult result = cuda::cu_success;
  for (std::uint32_t s = one.first; s < one.first + one.count && result == cuda::cu_success; ++s) {
    const Slice& slice = chunks_.slices[s];
    std::byte* const host = slot_of(chunk).data + slice.at;
    const auto device = cuda::device_address(request.spans[slice.span].memory + slice.position);
    result = reads() ? api.copy_to_device(device, host, slice.length, stream)
                     : api.copy_from_device(host, device, slice.length, stream);
  }
  return result;
}

// What stands on the stream gets through.
CuResult OrderedTransfer::break_off() {
  steps_->allow_all();
  return mark_end();
}

CuResult OrderedTransfer::mark_end() {
  const CuResult result = steps_->mark(size() + 2);
  if (result == cuda::cu_success) last_mark_.store(size() + 2, std::memory_order_release);
  return result;
}

bool OrderedTransfer::look(TimePoint now) {
  if (has_ended_) return false;
  if (now >= request_->deadline) request_->stop(Code::timed_out);
  bool has_moved = false;
  try {
    if (request_->stop_code() == Code::ok) has_moved = go_on(now);
  } catch (const std::bad_alloc&) {
    request_->stop(Code::out_of_memory);
  }
  const bool is_stopped = !has_ended_ && request_->stop_code() != Code::ok;
  return is_stopped ? stop() : has_moved;
}

bool OrderedTransfer::go_on(TimePoint now) {
  {
    const std::scoped_lock lock(mutex_);
    if (failure_) request_->stop_because(*std::exchange(failure_, std::nullopt));
  }
  bool has_moved = false;
  switch (step_) {
    case Step::waits:
      has_moved = try_to_begin();
      break;
    case Step::moves:
      has_moved = move();
      break;
    case Step::flushes:
      has_moved = has_ended(size());
      if (has_moved) {
        count_flush();
        next_step(Stage::flush);
      }
      break;
    case Step::asks_servers:
      has_moved = request_->servers_answered();
      if (has_moved) finish(true);
      break;
  }
  if (has_ended_) return true;
  if (has_moved) last_progress_ = now;
  stop_if_stalled(now);
  if (now - std::max(last_progress_, asked_) >= between_questions) ask_stream(now);
  return has_moved;
}

// Whether the stream has failed. On another thread: where a program has put more on a stream than the driver queues,
// its call waits for us, and the driver may let no other through.
void OrderedTransfer::ask_stream(TimePoint now) {
  asked_ = now;
  if (is_asking_.exchange(true)) return;
  request_->environment().completions.post([self = shared_from_this(), request = request_] {
    const CuResult state = request->order->reached();
    static_cast<void>(or_out_of_memory([&]() -> Status {
      if (state == cuda::cu_success || state == cuda::cu_not_ready) return {};
      const std::scoped_lock lock(self->mutex_);
      self->failure_ = self->gpu_.driver().error(state, "the stream of the request has failed");
      return {};
    }));
    self->is_asking_ = false;
  });
}

bool OrderedTransfer::try_to_begin() {
  if (steps_->passed() < reached_mark) return false;
  if (!request_->note_identities_again() || request_->stop_code() != Code::ok) return false;
  step_ = Step::moves;
  return true;
}

bool OrderedTransfer::move() {
  const std::uint32_t passed = steps_->passed();
  bool has_moved = false;
  for (; counted_ < next_ && has_ended(counted_); ++counted_, has_moved = true) {
    if (reads() && passed < mark_of(counted_)) break;
    count(counted_);
  }
  while (request_->stop_code() == Code::ok && next_ < size() && may_start(passed)) {
    start(next_++);
    has_moved = true;
  }
  if (counted_ == size() && request_->stop_code() == Code::ok) next_step(Stage::transfer);
  return has_moved;
}

// Whether the slot of the next chunk is free, or full.
bool OrderedTransfer::may_start(std::uint32_t passed) const {
  if (is_one_by_one_ && counted_ != next_) return false;
  if (!reads()) return passed >= mark_of(next_);
  const auto slots = static_cast<std::uint32_t>(slots_.blocks.size());
  return next_ < slots || passed >= mark_of(next_ - slots);
}

void OrderedTransfer::start(std::uint32_t chunk) {
  const OrderedChunks::Chunk& one = chunks_.chunks[chunk];
  std::vector<Range> ranges;
  ranges.reserve(one.count);
  for (std::uint32_t s = one.first; s < one.first + one.count; ++s) {
    const Slice& slice = chunks_.slices[s];
    const Span& span = request_->spans[slice.span];
    const TransformUse* const use = request_->transform_of(span);
    ranges.push_back({.store = &stores_[span.store],
                      .offset = span.offset + slice.position,
                      .memory = Region::host(slot_of(chunk).data + slice.at, slice.length),
                      .stored = use != nullptr ? &use->stored : nullptr});
  }
  start_inner(chunk, ranges, false);
}

// One that has no bytes, of all stores.
void OrderedTransfer::start_flush() {
  std::vector<Range> ranges;
  for (const Store& store : stores_) ranges.push_back({&store, 0, Region::host(slots_.blocks[0].data, 0)});
  start_inner(size(), ranges, true);
}

void OrderedTransfer::start_inner(std::uint32_t index, std::span<const Range> ranges, bool durable) {
  RequestOptions options;
  options.durable = durable;
  options.deadline_seconds = std::numeric_limits<double>::infinity();  // it is stopped with this one
  options.cache = request_->cache;
  auto inner =
      Request::create(request_->shared_environment(), ranges,
                      {.kind = request_->kind, .lanes = lanes_->size(), .may_wait = false, .is_inner = true}, options);
  if (!inner) {
    request_->stop_because(std::move(inner).error());
    return;
  }
  (*inner)->needs_staging = true;  // for ends that fill no whole block: of the lanes, those that have some
  (*inner)->set_on_end([self = shared_from_this(), index] { self->inner_ended(index); });
  states_[index].inner = *inner;
  lanes_->submit(*inner);
}

// The stream goes on at once, whenever the gate looks.
void OrderedTransfer::inner_ended(std::uint32_t index) {
  const std::scoped_lock lock(mutex_);
  states_[index].has_ended = true;
  while (ended_in_order_ < size() && states_[ended_in_order_].has_ended) ++ended_in_order_;
  steps_->allow(ended_in_order_);
}

bool OrderedTransfer::has_ended(std::uint32_t index) {
  const std::scoped_lock lock(mutex_);
  return states_[index].has_ended;
}

// The first code that stopped an inner request stops this one.
void OrderedTransfer::count(std::uint32_t chunk) {
  const std::shared_ptr<Request> inner = std::move(states_[chunk].inner);
  note_end(*inner);
  add_up(*inner);
  const OrderedChunks::Chunk& one = chunks_.chunks[chunk];
  const auto range_of = [&](std::uint64_t range) { return chunks_.slices[one.first + range].span; };
  for (const Part& part : inner->parts) {
    for (Failure failure : part.failures) {
      failure.range = range_of(failure.range);
      request_->parts[0].add_failure(failure, part.first_cause.get());
    }
    request_->parts[0].failure_count += part.failure_count - part.failures.size();
  }
  if (inner->stop_code() != Code::ok) return;
  for (std::uint32_t range = 0; range < one.count; ++range) {
    const Slice& slice = chunks_.slices[one.first + range];
    if (!has_failed(*inner, range)) {
      request_->range_moved(slice.span, slice.length);
    } else {
      request_->range_failed(slice.span, Code::io_error);  // of those that are not among the failures
    }
  }
}

void OrderedTransfer::count_flush() {
  const std::shared_ptr<Request> inner = std::move(states_[size()].inner);
  note_end(*inner);
  Part& all = request_->parts[0];
  all.stage = Stage::flush;
  for (const Part& part : inner->parts) {
    all.stores_flushed += part.stores_flushed;
    for (const Failure& failure : part.failures) all.add_failure(failure, part.first_cause.get());
  }
}

// What is lost of a read is only its slot; what is lost of a write may still arrive.
void OrderedTransfer::note_end(const Request& inner) {
  if (inner.outcome() == Outcome::abandoned) {
    is_spoilt_ = true;
    request_->parts[0].abandoned |= !reads();
  }
  if (inner.stop_code() != Code::ok) request_->stop(inner.stop_code());
}

void OrderedTransfer::add_up(const Request& inner) {
  Part& all = request_->parts[0];
  Tally<route_count>::Bytes routes{};
  Tally<reason_count>::Bytes reasons{};
  for (const Part& part : inner.parts) {
    part.routes.add_to(routes);
    part.reasons.add_to(reasons);
    all.extra_bytes += part.extra_bytes;
    all.stored_bytes += part.stored_bytes;
    all.made_bytes += part.made_bytes;
    if (!part.time) continue;
    if (!all.time) all.time.reset(new (std::nothrow) LaneTime);
    if (!all.time) continue;
    all.time->cpu_seconds += part.time->cpu_seconds;
    all.time->wall_seconds += part.time->wall_seconds;
  }
  for (std::size_t i = 0; i < routes.size(); ++i) all.routes.add(i, routes[i]);
  for (std::size_t i = 0; i < reasons.size(); ++i) all.reasons.add(i, reasons[i]);
  all.bytes.fetch_add(inner.bytes_done(), std::memory_order_relaxed);
}

void OrderedTransfer::next_step(Stage done) {
  const auto next = request_->next_stage(done);
  if (next == Stage::flush) {
    step_ = Step::flushes;
    start_flush();
  } else if (next == Stage::identities) {
    step_ = Step::asks_servers;
    request_->ask_servers([] {});
  } else if (request_->stop_code() == Code::ok) {
    finish(true);
  }
}

// Inner requests see to that themselves.
void OrderedTransfer::stop_if_stalled(TimePoint now) {
  const double seconds = request_->environment().options.deadlines.stall_seconds;
  const bool is_on_its_own = step_ == Step::asks_servers || (step_ == Step::moves && !is_inner_running());
  if (seconds <= 0 || !is_on_its_own) return;
  if (now >= last_progress_ + duration_from_seconds(seconds)) request_->stop(Code::timed_out);
}

bool OrderedTransfer::is_inner_running() {
  const std::scoped_lock lock(mutex_);
  return std::ranges::any_of(states_, [](const State& state) { return state.inner != nullptr && !state.has_ended; });
}

// The stream goes on; the request ends when its inner requests have.
bool OrderedTransfer::stop() {
  steps_->allow_all();
  if (!std::exchange(has_stopped_, true)) {
    for (const State& state : states_) {
      if (state.inner != nullptr) state.inner->stop(request_->stop_code());
    }
  }
  if (is_inner_running()) return false;
  for (const State& state : states_) {
    if (state.inner != nullptr) note_end(*state.inner);
  }
  finish(false);
  return true;
}

void OrderedTransfer::finish(bool is_whole) {
  Part& part = request_->parts[0];
  part.withdrawn = !is_whole;
  has_ended_ = true;
  if (!has_passed()) hold_buffers();
  for (State& state : states_) state.inner.reset();
  stores_.clear();  // or the request would not see that it is the last to have one, and it would be closed here
  Request::end_without_lanes(request_);
  steps_->allow_all();  // the stream finds the outcome
  part.hold.reset();
  lanes_.reset();
  request_.reset();
}

void OrderedTransfer::hold_buffers() {
  static_cast<void>(or_out_of_memory([&]() -> Status {
    for (const Span& span : request_->spans) {
      auto holder = span.length != 0 ? request_->held.holder_of(span.memory) : nullptr;
      if (holder != nullptr && (held_.empty() || held_.back() != holder)) held_.push_back(std::move(holder));
    }
    return {};
  }));
}

void OrderedTransfer::close(std::shared_ptr<OrderedTransfer> transfer) {
  const auto look_until = [&](TimePoint until, auto is_done) {
    while (!is_done() && Clock::now() < until) {
      transfer->look(Clock::now());
      if (!is_done()) std::this_thread::sleep_for(between_looks_at_close);
    }
  };
  if (!transfer->has_ended_) {
    transfer->request_->stop(Code::closed);
    const double seconds = transfer->request_->environment().options.deadlines.close_seconds;
    look_until(time_after(Clock::now(), duration_from_seconds(seconds)), [&] { return transfer->has_ended_; });
    if (!transfer->has_ended_) transfer->give_up();
  }
  look_until(Clock::now() + patience_at_close, [&] { return transfer->is_over(); });
  if (!transfer->is_over()) LeftBehind::add(std::move(transfer));
}

// A lane does not answer.
void OrderedTransfer::give_up() {
  is_spoilt_ = true;
  request_->parts[0].abandoned = true;
  finish(false);
}

}  // namespace penstock::core
