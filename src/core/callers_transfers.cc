#include "core/callers_transfers.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "core/completion_thread.h"
#include "core/flow.h"
#include "core/held_memory.h"
#include "core/lane_set.h"
#include "core/store_entry.h"

namespace penstock::core {

using engine::OpKind;
using engine::Path;

namespace {

// Longer ones gain from lanes, and must be able to end early.
constexpr std::uint64_t copied_bytes_most = 8 << 20;
// What a lane takes at once.
constexpr std::uint64_t copied_at_once_bytes = 1 << 20;

// Of the most usual reason; short enough that a string needs no memory for it.
constexpr const char* cached_text = "in page cache";

std::size_t index_of(Route route) {
  return static_cast<std::size_t>(route);
}

// Traces, profilers and deadlines want a Request.
RouteSet allowed_routes(const Options& options) {
  const bool has_watchers = options.nvtx || options.trace_events != 0 || options.deadlines.request_seconds != 0;
  return has_watchers ? 0 : route_set(options.allowed_routes);
}

}  // namespace

struct CallersTransfers::Transfer {
  const Range& range;
  StoreEntry& entry;
  const Cache cache;
  const TimePoint begun = Clock::now();
  Reason reason = Reason::in_page_cache;

  std::uint64_t offset() const { return range.offset; }
  std::uint64_t length() const { return range.memory.size_bytes; }
  std::span<std::byte> memory() const { return {range.memory.data, range.memory.size_bytes}; }
  bool is_short() const { return length() <= LaneSet::small_bytes; }
};

CallersTransfers::Caller::Caller(CallersTransfers& transfers, std::uint64_t bytes)
    : transfers_(transfers), is_counted_(bytes > LaneSet::small_bytes) {
  if (is_counted_) transfers_.callers_.fetch_add(1, std::memory_order_relaxed);
}

CallersTransfers::Caller::~Caller() {
  if (is_counted_) transfers_.callers_.fetch_sub(1, std::memory_order_relaxed);
}

CallersTransfers::CallersTransfers(Environment& environment)
    : environment_(environment), allowed_(allowed_routes(environment.options)) {}

bool CallersTransfers::is_plain(const Range& range, const RequestOptions& options) {
  const Region& memory = range.memory;
  const std::uint64_t size = memory.size_bytes;
  return size != 0 && size <= copied_bytes_most && memory.data != nullptr && memory.domain.host_accessible() &&
         range.stored == nullptr && options.deadline_seconds == 0 && !options.as_opened && !options.stream &&
         !options.on_end && !options.on_range && range.offset <= std::numeric_limits<std::int64_t>::max() - size;
}

StoreEntry* CallersTransfers::served(const Range& range, const RequestOptions& options) const {
  if (allowed_ == 0 || !is_plain(range, options)) return nullptr;
  StoreEntry* const entry = StoreEntry::of(range.store);
  if (entry == nullptr) return nullptr;
  const StoreInfo& info = entry->info();
  const bool is_served = info.page_cache && !is_remote(info.locality) &&
                         entry->has_up_to(range.offset + range.memory.size_bytes) &&
                         (*environment_.engines)[entry->engine()]->description().inline_queue;
  return is_served ? entry : nullptr;
}

bool CallersTransfers::read_if_cached(const Range& range, const RequestOptions& options) {
  StoreEntry* const entry = served(range, options);
  if (entry == nullptr) return false;
  const Transfer transfer{range, *entry, options.cache.value_or(environment_.options.cache)};
  const bool reads_past = transfer.cache == Cache::bypass && entry->direct();
  if (reads_past || !may_go(Route::cached)) return false;
  engine::PageCache& cache = *entry->store().page_cache();
  // read_cached starts to bring in what is missing, as for any other read of a file that stays in the page cache.
  const bool stays = entry->info().locality == Locality::memory || transfer.cache == Cache::keep ||
                     (transfer.cache == Cache::automatic && entry->fits_page_cache(environment_, transfer.begun));
  if (!stays && cache.resident_bytes(transfer.offset(), transfer.length()) != transfer.length()) return false;
  HeldMemory held;
  bool is_whole = false;
  try {
    if (!held.add(range.memory.data, range.memory.size_bytes)) return false;
    is_whole = cache.read_cached(transfer.offset(), transfer.memory()) == transfer.length();
  } catch (const std::bad_alloc&) {
    // A Request says so.
  }
  auto last_held = held.let_go();
  if (!last_held.empty()) environment_.completions.free_there(std::move(last_held));
  if (is_whole) count(transfer, Route::cached, Clock::now());
  return is_whole;
}

bool CallersTransfers::run(Direction direction, const Range& range, const RequestOptions& options, Report& report) {
  StoreEntry* const known = CompletionThread::inside_callback() ? nullptr : served(range, options);
  if (known == nullptr) return false;
  StoreEntry& entry = *known;
  Transfer transfer{range, entry, options.cache.value_or(environment_.options.cache)};
  HeldMemory held;
  bool is_done = false;
  try {
    if (!held.add(range.memory.data, range.memory.size_bytes)) return false;
    is_done = direction == Direction::read ? read(transfer, report) : write(transfer, options.durable, report);
  } catch (const std::bad_alloc&) {
    // A Request says so.
  }
  auto last_held = held.let_go();
  if (!last_held.empty()) environment_.completions.free_there(std::move(last_held));
  return is_done;
}

bool CallersTransfers::read(Transfer& transfer, Report& report) {
  const bool reads_past = transfer.cache == Cache::bypass && transfer.entry.direct();
  if (reads_past) {
    transfer.reason = Reason::bypass_asked;
    return read_past_cache(transfer, report);
  }
  if (!may_go(Route::cached) || !leaves_processors(transfer.length())) return false;
  const StoreEntry& entry = transfer.entry;
  const bool compares =
      transfer.length() >= Request::identity_checked_from_bytes && !entry.info().writable && !entry.is_growing();
  std::optional<Result<engine::State>> before;
  if (compares) {
    before = entry.store().state();
    if (!*before) return false;
    entry.store().await_writers();
  }
  if (!read_cached(transfer, report)) return false;
  if (compares) {
    const auto after = entry.store().state();
    if (!after || after->identity != (*before)->identity) return false;
  }
  tell(transfer, report.routes[index_of(Route::buffered)] == 0 ? Route::cached : Route::buffered, report);
  return true;
}

// Lanes copy a long range side by side, if callers leave them processors for that.
bool CallersTransfers::leaves_processors(std::uint64_t bytes) const {
  const std::uint64_t units = (bytes + copied_at_once_bytes - 1) / copied_at_once_bytes;
  return units == 1 || callers_.load(std::memory_order_relaxed) * units > environment_.options.lanes;
}

bool CallersTransfers::read_cached(Transfer& transfer, Report& report) {
  StoreEntry& entry = transfer.entry;
  const bool is_in_memory = entry.info().locality == Locality::memory;
  const bool keeps = is_in_memory || transfer.cache == Cache::keep ||
                     (transfer.cache == Cache::automatic && entry.fits_page_cache(environment_, transfer.begun));
  engine::PageCache& cache = *entry.store().page_cache();
  // To read what is not there may bring it there.
  if (!keeps || !transfer.is_short()) {
    if (cache.resident_bytes(transfer.offset(), transfer.length()) != transfer.length()) return false;
  }
  const auto cached = cache.read_cached(transfer.offset(), transfer.memory());
  if (!cached) return false;
  const bool is_whole = *cached == transfer.length();
  if (is_whole) {
    if (is_in_memory) transfer.reason = Reason::in_memory;
  } else {
    if (!transfer.is_short() || !keeps || !may_go(Route::buffered)) return false;
    transfer.reason = transfer.cache == Cache::keep ? Reason::keep_asked : Reason::file_fits;
    if (!run_op(transfer, OpKind::read, Path::buffered, *cached)) return false;
  }
  report.routes[index_of(Route::cached)] = *cached;
  report.routes[index_of(Route::buffered)] = transfer.length() - *cached;
  return true;
}

bool CallersTransfers::read_past_cache(Transfer& transfer, Report& report) {
  if (!may_go(Route::direct) || !is_aligned(transfer, Direction::read)) return false;
  if (!run_op(transfer, OpKind::read, Path::direct)) return false;
  report.routes[index_of(Route::direct)] = transfer.length();
  tell(transfer, Route::direct, report);
  return true;
}

bool CallersTransfers::is_aligned(const Transfer& transfer, Direction direction) {
  const std::uint64_t alignment = transfer.entry.alignment(direction);
  const auto address = reinterpret_cast<std::uintptr_t>(transfer.range.memory.data);
  return transfer.length() < Flow::counted_from_bytes && transfer.offset() % alignment == 0 &&
         transfer.length() % alignment == 0 && address % transfer.entry.info().alignments.memory == 0;
}

// Within what the file has: no room has to be reserved.
bool CallersTransfers::write(Transfer& transfer, bool durable, Report& report) {
  StoreEntry& entry = transfer.entry;
  engine::Writer* const writer = entry.store().writer();
  Replacing* const replacing = entry.replacing();
  const bool is_served = entry.info().kind == StoreKind::file && writer != nullptr &&
                         (replacing == nullptr || replacing->state() != Replacing::State::aborted);
  if (!is_served) return false;
  const auto plan = plan_write(transfer);
  if (!plan || plan->fill_after) return false;
  Path path = plan->path;
  transfer.reason = plan->reason;
  if (path == Path::direct) {
    // Part of one block is an end of a write, and nothing else is.
    const std::uint64_t block = entry.alignment(Direction::write);
    const bool is_edge = transfer.offset() % block + transfer.length() <= block && transfer.length() != block &&
                         writer->edges() == engine::Writer::Edges::buffered;
    if (!is_edge && !is_aligned(transfer, Direction::write)) return false;
    if (is_edge) path = Path::buffered;
    if (is_edge) transfer.reason = Reason::edge;
  }
  const Route route = engine::route_of(path);
  if (!may_go(route)) return false;
  if (durable && !writer->sync_name()) return false;
  if (!run_op(transfer, OpKind::write, path)) return false;
  note_write(transfer, path);
  if (durable && !flush(transfer)) return false;
  if (replacing != nullptr) replacing->written(transfer.offset(), transfer.offset() + transfer.length());
  report.routes[index_of(route)] = transfer.length();
  tell(transfer, route, report);
  return true;
}

std::optional<WindowPlan> CallersTransfers::plan_write(const Transfer& transfer) const {
  StoreEntry& entry = transfer.entry;
  WindowFacts facts{.direction = Direction::write,
                    .locality = entry.info().locality,
                    .direct = entry.direct(),
                    .page_cache = true,
                    .cache = transfer.cache,
                    .allowed = allowed_};
  const bool stays =
      facts.direct && facts.cache == Cache::automatic && entry.fits_page_cache(environment_, transfer.begun);
  if (stays) {
    facts.stays = transfer.length() < DiskRates::noted_from_bytes
                      ? Stays::file
                      : entry.cached_file().rates_of(Direction::write).next(transfer.length());
  }
  return plan_window(facts);
}

void CallersTransfers::note_write(const Transfer& transfer, Path path) {
  if (transfer.length() < DiskRates::noted_from_bytes || transfer.entry.cached_file().number == 0) return;
  const TimePoint now = Clock::now();
  transfer.entry.cached_file().note(Direction::write, path, transfer.length(), now - transfer.begun, now);
}

bool CallersTransfers::flush(const Transfer& transfer) const {
  const TimePoint begun = Clock::now();
  if (!run_op(transfer, OpKind::flush, Path::buffered)) return false;
  const TimePoint now = Clock::now();
  transfer.entry.cached_file().note_sync(now - begun, now);
  return true;
}

bool CallersTransfers::run_op(const Transfer& transfer, OpKind kind, Path path, std::uint64_t done) const {
  engine::Engine& engine = *(*environment_.engines)[transfer.entry.engine()];
  const bool moves = engine::moves_bytes(kind);
  engine::Op op{.kind = kind, .path = path, .store = &transfer.entry.store()};
  while (true) {
    if (moves) {
      op.offset = transfer.offset() + done;
      op.length = transfer.length() - done;
      op.memory = transfer.range.memory.data + done;
    }
    const engine::Done ended = engine.run_here(op);
    if (ended.code != Code::ok && ended.system_error != EINTR) return false;
    done += ended.bytes;
    if (ended.code == Code::ok && (!moves || done == transfer.length())) return true;
    // A direct operation can't go on in the middle of a block.
    if (ended.code == Code::ok && (ended.bytes == 0 || path == Path::direct)) return false;
  }
}

void CallersTransfers::count(const Transfer& transfer, Route route, TimePoint end) const {
  const auto nanoseconds = static_cast<std::uint64_t>(std::chrono::nanoseconds(end - transfer.begun).count());
  environment_.statistics.count_call(transfer.entry.engine(), route, transfer.length(), nanoseconds, end);
}

void CallersTransfers::tell(const Transfer& transfer, Route route, Report& report) const {
  const TimePoint end = Clock::now();
  const std::size_t engine = transfer.entry.engine();
  report.outcome = Outcome::done;
  report.bytes = transfer.length();
  report.seconds = seconds_between(transfer.begun, end);
  if (report.bytes >= Lane::timed_from_bytes) {
    report.cpu_seconds = report.seconds;
    report.limit = Limit::cpu;
  }
  count(transfer, route, end);
  try {
    report.engine = (*environment_.engines)[engine]->description().name;
    report.reason = cached_text;
    if (transfer.reason == Reason::in_page_cache && transfer.is_short()) return;
    report.reason = transfer.entry.engine_reason();
    report.reason.append("; ").append(reason_text(transfer.reason));
  } catch (const std::bad_alloc&) {
    // The texts are missing.
  }
}

}  // namespace penstock::core
