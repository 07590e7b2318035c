#include "core/carrier.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/callback.h"
#include "base/out_of_memory.h"
#include "core/cut.h"
#include "core/cutter.h"

namespace penstock::core {

using engine::Done;
using engine::OpKind;
using engine::Path;

namespace {

constexpr std::uint8_t most_attempts = 32;
constexpr Duration first_backoff = std::chrono::microseconds(50);
constexpr Duration longest_backoff = std::chrono::milliseconds(10);
constexpr Duration block_wait = std::chrono::microseconds(100);

bool is_transient(const Done& done) {
  return done.system_error == EAGAIN || done.system_error == EINTR;
}
bool refuses_direct(const Done& done) {
  return done.system_error == EINVAL || done.system_error == EOPNOTSUPP;
}

// Adds the bytes [from, moved) of the operation, as far as they are bytes of the piece. What has no memory takes no
// way.
void count_route(Piece& piece, Route route, std::uint64_t from) {
  if (piece.user == nullptr) return;
  const std::uint64_t begin = std::max(from, piece.lead);
  const std::uint64_t end = std::min(piece.moved, piece.lead + piece.length);
  if (end <= begin) return;
  const std::uint64_t taken = piece.routes[static_cast<std::size_t>(route)] += end - begin;
  if (taken >= piece.routes[static_cast<std::size_t>(piece.main_route)]) piece.main_route = route;
}

std::uint32_t store_of(const Piece& piece) {
  return piece.phase == Piece::Phase::flush ? piece.range : piece.part->hold->spans[piece.range].store;
}

bool may_buffer(const Piece& piece) {
  const Request& request = *piece.part->hold;
  return Cutter::may_be_buffered(request, *piece.entry, request.spans[piece.range]);
}

// Between the page cache and the way past it, for their speed.
bool is_of_a_choice(Reason reason) {
  return reason == Reason::file_fits || reason == Reason::tried_past || reason == Reason::faster_past ||
         reason == Reason::write_fits || reason == Reason::write_faster_past;
}

bool is_whole_block(const Piece& piece) {
  return piece.phase == Piece::Phase::read_block || piece.phase == Piece::Phase::write_block;
}
std::uint64_t needed_bytes(const Piece& piece) {
  return is_whole_block(piece) ? piece.span_bytes : piece.lead + piece.length;
}

// The first byte of the piece, in staging memory or in what was lent.
const std::byte* arrived_at(const Piece& piece) {
  return (piece.loan != nullptr ? piece.loan->data() : piece.staging.data) + piece.lead;
}

Code nothing_moved(const Piece& piece) {
  return piece.op.kind == OpKind::read ? Code::truncated : Code::no_space;
}

}  // namespace

Carrier::Carrier(LaneResources& lane) : lane_(lane) {
  retries_.reserve(lane.pieces.size());
}

void Carrier::begin(std::uint32_t index, TimePoint now) {
  const Piece& piece = lane_.pieces[index];
  const bool fetch = piece.phase == Phase::transfer && piece.is_staged() && piece.op.kind == OpKind::write;
  if (fetch && piece.gpu != nullptr) {
    copy(index, cuda::Toward::host);
    return;
  }
  if (fetch) std::memcpy(piece.staging.data, piece.user, piece.length);
  send(index, now);
}

void Carrier::send(std::uint32_t index, TimePoint now) {
  Piece& piece = lane_.pieces[index];
  if (piece.phase == Phase::lock_block) {
    lock_block(index, now);
    return;
  }
  engine::Op& op = piece.op;
  if (piece.phase != Phase::flush) {
    std::byte* const base = piece.is_staged() ? piece.staging.data : piece.user;
    op.offset = piece.offset - piece.lead + piece.moved;
    op.length = piece.span_bytes - piece.moved;
    op.memory = base != nullptr ? base + piece.moved : nullptr;
  }
  op.cookie = lane_.pieces.cookie_of(index);
  piece.submitted = now;
  lane_.queues.add(piece.entry->engine(), op);
}

// Between the piece's place in staging memory and the GPU's; on_copied goes on.
void Carrier::copy(std::uint32_t index, cuda::Toward toward) {
  Piece& piece = lane_.pieces[index];
  if (lane_.trace != nullptr) piece.submitted = Clock::now();
  piece.where = Piece::Where::copying;
  cuda::Copy copy{.host = const_cast<std::byte*>(arrived_at(piece)),
                  .device = piece.user,
                  .bytes = piece.length,
                  .cookie = lane_.pieces.cookie_of(index)};
  Making* const making = piece.making.get();
  if (making != nullptr && making->made != nullptr) {
    copy.host = making->made;
    copy.bytes = piece.memory_bytes;
  } else if (making != nullptr) {
    copy.device = making->scratch;
    making->seen_at = making->scratch;
    if (making->scratch == nullptr) {
      copy.bytes = 0;
      making->seen_at = lane_.copies.over_the_bus(copy.host);
    }
    copy.then = &launch_making;
    copy.argument = &piece;
  }
  lane_.copies.add(*piece.gpu, toward, copy);
}

void Carrier::make(std::uint32_t index) {
  Piece& piece = lane_.pieces[index];
  Making& making = *piece.making;
  // A stream may have begun to wait since.
  if (making.by_gpu && piece.gpu->stream_waits().load(std::memory_order_relaxed) != 0) {
    if (const auto room = piece.staging.arena->take(piece.memory_bytes)) {
      making.room = *room;
      making.made = room->data;
      making.by_gpu = false;
    }
  }
  if (making.by_gpu) {
    copy(index, cuda::Toward::device);
    return;
  }
  const Transform::Piece given{making.stored->tag,
                               {arrived_at(piece), piece.length},
                               {making.made != nullptr ? making.made : piece.user, piece.memory_bytes}};
  const Status made = call_back("Transform::by_cpu", [&] { return making.stored->transform->by_cpu(given); });
  if (!made) {
    fail(index, made.error().code, made.error().system_error, &made.error());
  } else if (piece.gpu != nullptr) {
    copy(index, cuda::Toward::device);
  } else {
    account(index);
  }
}

// The copy queue may come to it when its request is gone.
cuda::CuResult Carrier::launch_making(cuda::CuStream stream, void* argument) {
  const Piece& piece = *static_cast<const Piece*>(argument);
  if (piece.orphan) return cuda::cu_success;
  Making& making = *piece.making;
  const Transform::Piece given{making.stored->tag, {making.seen_at, piece.length}, {piece.user, piece.memory_bytes}};
  const Transform::OnGpu gpu{
      piece.gpu->info().domain, {stream}, reinterpret_cast<std::uint32_t*>(cuda::device_pointer(making.status.device))};
  Status put = call_back("Transform::by_gpu", [&] { return making.stored->transform->by_gpu(given, gpu); });
  if (!put) making.failure = std::move(put).error();
  return cuda::cu_success;
}

std::optional<Error> Carrier::failure_of(const Piece& piece, cuda::CuResult copied) {
  const bool reads = piece.part->hold->direction == Direction::read;
  if (copied != cuda::cu_success) {
    return piece.gpu->driver().error(copied, (reads ? "copy to " : "copy from ") + piece.gpu->info().domain.name());
  }
  if (!reads || !piece.making) return std::nullopt;
  const Making& making = *piece.making;
  if (making.failure) return making.failure;
  if (making.status.host == nullptr) return std::nullopt;
  const auto status = std::atomic_ref(*reinterpret_cast<std::uint32_t*>(making.status.host)).load();
  if (status == 0) return std::nullopt;
  const Stored& stored = *making.stored;
  return call_back("Transform::failure_of", [&] { return stored.transform->failure_of(stored.tag, status); });
}

Part* Carrier::on_copied(const cuda::CopyDone& done, TimePoint now) {
  const std::uint32_t index = Pieces::index_of(done.cookie);
  Piece& piece = lane_.pieces[index];
  piece.where = Piece::Where::here;
  if (lane_.trace != nullptr) {
    lane_.trace->add_transfer(TraceKind::copy, piece.submitted, now, piece.length, Route::buffered);
  }
  if (piece.orphan) {
    on_orphan_home(index);
    return nullptr;
  }
  Part& part = *piece.part;
  part.last_progress = now;
  std::optional<Error> failure;
  const bool is_plain = done.result == cuda::cu_success && !piece.making;
  if (!is_plain) failure = or_out_of_memory([&] { return failure_of(piece, done.result); });
  if (failure) {
    fail(index, failure->code, done.result == cuda::cu_success ? failure->system_error : 0, &*failure);
  } else if (part.hold->direction == Direction::read) {
    account(index);
  } else if (part.is_stopped()) {
    drop(index);
  } else {
    if (piece.phase == Phase::read_block) write_block(index);
    send(index, now);
  }
  return &part;
}

Part* Carrier::on_done(std::size_t engine, const Done& done, TimePoint now) {
  const std::uint32_t index = Pieces::index_of(done.cookie);
  Piece& piece = lane_.pieces[index];
  const Duration latency = now - piece.submitted;
  const bool is_inner = piece.part != nullptr && piece.part->hold->is_inner();
  const bool is_copied = (piece.is_out_of_reach && piece.op.path != Path::device) || is_inner;
  const Route route = is_copied ? staged(done.route) : done.route;
  // What has no memory goes no way; it only takes its time.
  const std::uint64_t bytes = engine::moves_bytes(piece.op.kind) ? done.bytes : 0;
  if (piece.phase != Phase::flush) {
    lane_.statistics->record(engine, route, bytes,
                             static_cast<std::uint64_t>(std::chrono::nanoseconds(latency).count()),
                             done.code == Code::ok);
  }
  if (lane_.trace != nullptr) lane_.trace->add_transfer(TraceKind::storage, piece.submitted, now, bytes, route);
  const bool past_cache = piece.op.path == Path::direct || piece.op.path == Path::device;
  if (piece.flow != nullptr && past_cache && bytes != 0 && bytes == piece.op.length) {
    piece.flow->note(bytes, latency, now);
  }
  if (bytes >= DiskRates::noted_from_bytes && is_of_a_choice(piece.reason)) {
    const Direction direction = piece.op.kind == OpKind::read ? Direction::read : Direction::write;
    piece.entry->cached_file().note(direction, piece.op.path, bytes, latency, now);
  }
  if (piece.phase == Phase::flush && done.code == Code::ok) piece.entry->cached_file().note_sync(latency, now);
  if (done.loan != nullptr) take_loan(piece, done);
  if (piece.orphan) {
    on_orphan_home(index);
    return nullptr;
  }
  Part* const part = piece.part;
  part->last_progress = now;
  if (done.code == Code::ok) {
    on_moved(index, done.bytes, route, now);
  } else {
    on_failed(index, done, now);
  }
  return part;
}

// Copied to where the operation would have brought it, or kept until a GPU has copied it.
void Carrier::take_loan(Piece& piece, const Done& done) {
  const std::uint64_t bytes = std::min(done.bytes, piece.op.length);
  const bool is_wanted = !piece.orphan && done.code == Code::ok && piece.op.kind == OpKind::read;
  const bool is_whole = piece.phase == Phase::transfer && piece.moved == 0 && bytes >= needed_bytes(piece);
  const bool can_copy = piece.gpu != nullptr && lane_.staging.is_at_one_address() && done.loan->is_pinned();
  if (is_wanted && is_whole && can_copy) {
    piece.loan = done.loan;
    return;
  }
  if (is_wanted && piece.op.path != Path::device) std::memcpy(piece.op.memory, done.loan->data(), bytes);
  done.loan->give_back();
}

void Carrier::on_orphan_home(std::uint32_t index) {
  const std::uint64_t bytes = lane_.pieces[index].quarantined_bytes;
  --orphans_;
  {
    memory::FreedLater later;
    free(index);
    lane_.environment.completions.free_there(later.take());
  }
  lane_.environment.orphans.fetch_sub(1, std::memory_order_relaxed);
  lane_.environment.quarantined_bytes.fetch_sub(bytes, std::memory_order_release);
  lane_.environment.ends.announce();  // who opens its store anew may wait for it
}

void Carrier::on_moved(std::uint32_t index, std::uint64_t bytes, Route route, TimePoint now) {
  Piece& piece = lane_.pieces[index];
  if (piece.phase == Phase::flush) {
    ++piece.part->stores_flushed;
    drop(index);
    return;
  }
  const std::uint64_t before = piece.moved;
  piece.moved = std::min(before + bytes, piece.span_bytes);
  const bool has_all = piece.moved >= needed_bytes(piece);
  if (piece.phase != Phase::read_block) count_route(piece, route, before);
  if (has_all && piece.phase != Phase::read_block) {
    finish(index);
  } else if (piece.part->is_stopped()) {
    drop(index);
  } else if (has_all) {
    write_back_block(index, now);
  } else if (bytes == 0) {
    fail(index, nothing_moved(piece), 0);
  } else {
    continue_short(index, before, route, now);
  }
}

// Those that share a read read only what is cached. The rest comes through the page cache, but from the disk.
void Carrier::leave_shared_read(Piece& piece) {
  if (!std::exchange(piece.op.is_shared, false)) return;
  piece.op.path = Path::buffered;
  piece.part->hold->give_up_long_slots();
}

void Carrier::continue_short(std::uint32_t index, std::uint64_t before, Route route, TimePoint now) {
  Piece& piece = lane_.pieces[index];
  leave_shared_read(piece);
  const std::uint64_t alignment = piece.entry->alignment(piece.part->hold->direction);
  const bool whole_blocks = piece.op.path == Path::direct || piece.op.path == Path::device;
  if (whole_blocks && piece.moved % alignment != 0) {
    // A direct operation can't go on in the middle of a block; the page cache can. Without one, the block is redone.
    if (piece.op.path == Path::direct && may_buffer(piece) && !is_whole_block(piece)) {
      piece.op.path = Path::buffered;
      piece.span_bytes = needed_bytes(piece);
    } else {
      piece.moved = align_down(piece.moved, alignment);
      piece.routes = {};
      count_route(piece, route, 0);
    }
  }
  if (piece.moved > before) {
    piece.attempts = 0;
  } else if (++piece.attempts == most_attempts) {
    fail(index, nothing_moved(piece), 0);
    return;
  }
  send(index, now);
}

void Carrier::lock_block(std::uint32_t index, TimePoint now) {
  Piece& piece = lane_.pieces[index];
  piece.block.number = piece.offset - piece.lead;
  if (!piece.entry->blocks().try_lock(piece.block)) {
    retry_at(index, now + block_wait);
    return;
  }
  piece.holds_block = true;
  piece.phase = Phase::read_block;
  piece.op.kind = OpKind::read;
  send(index, now);
}

void Carrier::write_back_block(std::uint32_t index, TimePoint now) {
  const Piece& piece = lane_.pieces[index];
  if (piece.gpu != nullptr) {
    copy(index, cuda::Toward::host);
    return;
  }
  std::byte* const place = piece.staging.data + piece.lead;
  if (piece.user != nullptr) {
    std::memcpy(place, piece.user, piece.length);
  } else {
    std::memset(place, 0, piece.length);
  }
  write_block(index);
  send(index, now);
}

void Carrier::write_block(std::uint32_t index) {
  Piece& piece = lane_.pieces[index];
  piece.phase = Phase::write_block;
  piece.op.kind = OpKind::write;
  piece.moved = 0;
}

void Carrier::on_failed(std::uint32_t index, const Done& done, TimePoint now) {
  Piece& piece = lane_.pieces[index];
  if (piece.part->is_stopped()) {
    drop(index);
    return;
  }
  if (piece.op.is_shared && done.system_error == EAGAIN) {
    leave_shared_read(piece);
    send(index, now);
    return;
  }
  if (is_transient(done) && ++piece.attempts < most_attempts) {
    const Duration backoff = std::min(longest_backoff, first_backoff * (1 << std::min<int>(piece.attempts, 10)));
    retry_at(index, done.system_error == EINTR ? now : now + backoff);
    return;
  }
  const bool may_go_around = piece.op.path == Path::direct && piece.phase == Phase::transfer && piece.user != nullptr;
  if (may_go_around && refuses_direct(done) && may_buffer(piece)) {
    piece.entry->refuse_direct();
    piece.reason = Reason::refused;
    piece.op.path = Path::buffered;
    piece.span_bytes = piece.lead + piece.length;
    send(index, now);
    return;
  }
  fail(index, done.code, done.system_error, done.cause);
}

void Carrier::retry_at(std::uint32_t index, TimePoint time) {
  lane_.pieces[index].retry_at = time;
  retries_.push_back(index);
}

void Carrier::send_due_retries(TimePoint now) {
  // Sending may put a piece back at the end of the list, so only those that were there are looked at.
  std::size_t left = retries_.size();
  for (std::size_t i = 0; left > 0; --left) {
    const std::uint32_t index = retries_[i];
    if (lane_.pieces[index].retry_at > now) {
      ++i;
      continue;
    }
    retries_.erase(retries_.begin() + static_cast<std::ptrdiff_t>(i));
    send(index, now);
  }
}

TimePoint Carrier::next_retry() const {
  TimePoint time = TimePoint::max();
  for (const std::uint32_t index : retries_) time = std::min(time, lane_.pieces[index].retry_at);
  return time;
}

// Storage has done its part.
void Carrier::finish(std::uint32_t index) {
  Piece& piece = lane_.pieces[index];
  // From here on the slot is what limits, not the page cache.
  if (piece.flow == nullptr) leave_flow(piece);
  if (std::exchange(piece.fills_slot, false)) --lane_.slots_filling;
  if (piece.making) {
    make(index);
    return;
  }
  if (piece.is_staged() && piece.op.kind == OpKind::read) {
    if (piece.gpu != nullptr) {
      copy(index, cuda::Toward::device);
      return;
    }
    std::memcpy(piece.user, piece.staging.data + piece.lead, piece.length);
  }
  account(index);
}

void Carrier::account(std::uint32_t index) {
  const Piece& piece = lane_.pieces[index];
  Part& part = *piece.part;
  const auto main_route = static_cast<std::size_t>(piece.main_route);
  if (piece.making) {
    part.stored_bytes += piece.length;
    part.made_bytes += piece.memory_bytes;
    lane_.statistics->record_made(piece.length, piece.memory_bytes);
  }
  part.do_or_stop([&] {
    if (piece.making || piece.routes[main_route] == piece.memory_bytes) {
      part.routes.add(main_route, piece.memory_bytes);
    } else {
      for (std::size_t i = 0; i < route_count; ++i) part.routes.add(i, piece.routes[i]);
    }
    const Reason reason = reason_after(piece.reason, piece.main_route);
    part.reasons.add(static_cast<std::size_t>(reason), piece.memory_bytes);
  });
  if (part.hold->direction == Direction::read) part.extra_bytes += piece.moved - std::min(piece.moved, piece.length);
  part.bytes.store(part.bytes.load(std::memory_order_relaxed) + piece.memory_bytes, std::memory_order_relaxed);
  part.hold->range_moved(piece.range, piece.memory_bytes);
  drop(index);
}

void Carrier::fail(std::uint32_t index, Code code, std::int32_t system_error, const Error* cause) {
  const Piece& piece = lane_.pieces[index];
  piece.part->add_failure({piece.range, piece.offset, piece.length, code, system_error}, cause);
  drop(index);
}

void Carrier::drop(std::uint32_t index) {
  --lane_.pieces[index].part->in_flight;
  free(index);
}

void Carrier::free(std::uint32_t index) {
  Piece& piece = lane_.pieces[index];
  if (piece.holds_block) piece.entry->blocks().unlock(piece.block);
  if (piece.loan != nullptr) piece.loan->give_back();
  if (piece.is_staged()) piece.staging.arena->give_back(piece.staging);
  if (piece.fills_slot) --lane_.slots_filling;
  leave_flow(piece);
  lane_.pieces.give_back(index);
}

void Carrier::leave_flow(Piece& piece) {
  const std::uint64_t bytes = std::exchange(piece.flow_bytes, 0);
  if (bytes == 0) return;
  if (piece.flow != nullptr) {
    lane_.flow.end(*piece.flow, bytes);
  } else {
    lane_.cached_bytes -= bytes;
  }
}

void Carrier::withdraw(Part& part, TimePoint patience_end) {
  Pieces& pieces = lane_.pieces;
  const auto is_of_part = [&](std::uint32_t index) { return pieces[index].part == &part; };
  std::erase_if(retries_, is_of_part);
  lane_.queues.take_back([&](std::uint64_t cookie) { return is_of_part(Pieces::index_of(cookie)); });
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (!is_of_part(i)) continue;
    Piece& piece = pieces[i];
    if (piece.where == Piece::Where::here) {
      drop(i);
      continue;
    }
    if (piece.where == Piece::Where::copying) continue;  // it can't be called back, but does not take long
    lane_.queues.cancel(piece.entry->engine(), piece.op.cookie);
    // What is written may still arrive, and over what is written next: that is waited for.
    const bool is_lent = (*lane_.environment.engines)[piece.entry->engine()]->description().lends;
    if ((!piece.is_staged() && !is_lent) || part.hold->direction != Direction::read) continue;
    make_orphan(piece);
    piece.retry_at = patience_end;
    --part.in_flight;
  }
}

void Carrier::abandon(Part& part) {
  for (std::uint32_t i = 0; i < lane_.pieces.size(); ++i) {
    Piece& piece = lane_.pieces[i];
    if (piece.part != &part) continue;
    if (const std::byte* const touched = piece.touched()) {
      piece.attachment = part.hold->attachment_of(piece.op.attached);
      piece.held = part.hold->held.holder_of(touched);
      piece.quarantined_bytes = piece.where == Piece::Where::copying ? piece.memory_bytes : piece.op.length;
      lane_.environment.quarantined_bytes.fetch_add(piece.quarantined_bytes, std::memory_order_relaxed);
    }
    make_orphan(piece);
    piece.retry_at = TimePoint::max();
  }
  part.in_flight = 0;
  part.abandoned = true;
}

void Carrier::make_orphan(Piece& piece) {
  piece.kept = piece.part->hold->stores[store_of(piece)].entry;
  if (std::exchange(piece.fills_slot, false)) --lane_.slots_filling;
  leave_flow(piece);
  piece.part = nullptr;
  piece.orphan = true;
  ++orphans_;
  lane_.environment.orphans.fetch_add(1, std::memory_order_relaxed);
}

TimePoint Carrier::patience_end() const {
  TimePoint end = TimePoint::max();
  if (orphans_ == 0) return end;
  for (std::uint32_t i = 0; i < lane_.pieces.size(); ++i) {
    if (lane_.pieces[i].orphan) end = std::min(end, lane_.pieces[i].retry_at);
  }
  return end;
}

}  // namespace penstock::core
