#include "core/launcher.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/log.h"
#include "base/out_of_memory.h"

namespace penstock::core {

using engine::OpKind;
using engine::Path;

namespace {

// Of a slot: copying less takes no time worth mentioning.
constexpr std::uint64_t slot_worth_bytes = 128 << 10;

// Of what is written through the page cache and then synced: less is written back in a moment.
constexpr std::uint64_t writeback_worth_bytes = 32 << 20;

// Of what a transform makes in staging memory: a page.
constexpr std::uint64_t made_alignment = 4096;

bool is_past_cache(Path path) {
  return path == Path::direct || path == Path::device;
}

// Of all lanes, of a local disk: the kernel reads ahead for the file, and takes reads that are far apart for random
// ones. Two lanes read a cold file of 2 GB in 1.4 s with 4 MiB in flight, in 1.9 with 8, in 2.3 with 64; past the page
// cache in 1.1.
constexpr std::uint64_t read_ahead_bytes_total = 4 << 20;

// Of what the part stands in, or stood in last.
bool is_read_ahead(const Part& part) {
  if (part.plan.path != Path::buffered || part.stage != Stage::transfer) return false;
  const Request& request = *part.hold;
  const Span& span = request.spans[part.range];
  return request.direction == Direction::read && span.length >= Flow::counted_from_bytes &&
         request.stores[span.store].entry->info().locality == Locality::local;
}

}  // namespace

bool Launcher::make_queue(std::size_t engine) {
  const Status made = lane_.queues.ensure(engine);
  if (made) return true;
  log(LogLevel::error, made.error().message);
  queue_failure_ = made.error().code;
  return false;
}

void Launcher::note_lack_of_places(const Part& part) {
  if (part.unit.count == 0) return;  // between units, or in a later stage: there is no range that it stands in
  const Request& request = *part.hold;
  request.stores[request.spans[part.range].store].entry->flow(request.direction).note_full();
}

// REQUIRES: copies are ready, if the memory is a GPU's.
Result<StagingArena*> Launcher::staging_for(const StoreEntry& entry, const Span& span, std::uint64_t bytes) {
  auto arena = lane_.staging.get_for(entry.engine(), bytes);
  if (!arena || span.gpu == nullptr) return arena;
  if (const Status ready = lane_.copies.get_ready(*span.gpu, **arena); !ready) return ready.error();
  return arena;
}

// Null: there are none, or its GPU does not get to know them.
StagingArena* Launcher::long_slots_for(const Request& request) {
  const auto slots = lane_.staging.long_slots();
  if (!slots) return nullptr;
  cuda::Device& gpu = request.gpu_of_all();
  if (!lane_.copies.get_ready(gpu, request.staged_toward())) return nullptr;
  const Status known = lane_.copies.get_ready(gpu, **slots);
  if (known) return *slots;
  lane_.staging.give_up_long_slots(known.error());
  return nullptr;
}

bool Launcher::has_flow(Flow& flow) {
  if (&flow != full_ && lane_.flow.has_room(flow)) return true;
  full_ = &flow;
  return false;
}

Launch Launcher::start_next(Part& part, TimePoint now) {
  if (part.stage == Stage::edges) return start_edge(part, now);
  if (part.stage == Stage::flush) return start_flush(part, now);
  // Of many parts that wait for one store, only the first is cut to find that out.
  const bool is_planned = part.unit.count != 0 && !part.plan_each_piece && is_past_cache(part.plan.path);
  if (is_planned && full_ != nullptr) {
    const Request& request = *part.hold;
    const Span& span = request.spans[part.range];
    const bool is_counted = span.length >= Flow::counted_from_bytes;
    if (is_counted && full_ == &request.stores[span.store].entry->flow(request.direction)) return Launch::waits;
  }
  if (part.unit.count == 0 && part.claimed == part.claimed_end && part.hold->is_left_to_another(part)) {
    part.was_left = true;
    return part.hold->has_more_units() ? Launch::waits : Launch::finished;
  }
  // Before it takes a unit, so that lanes begin them in order.
  const Options& options = lane_.environment.options;
  const bool is_far_ahead = lane_.cached_bytes != 0 &&
                            lane_.cached_bytes + options.storage_chunk_bytes > read_ahead_bytes_total / options.lanes;
  if (is_far_ahead && is_read_ahead(part)) return Launch::waits;
  std::uint64_t room_bytes = UINT64_MAX;
  part.takes_long_slot = false;
  if (part.hold->fills_long_slots(part)) {
    if (StagingArena* const slots = long_slots_for(*part.hold)) {
      const std::uint64_t slot_bytes = lane_.settings.long_slots.slot_bytes;
      room_bytes = std::min<std::uint64_t>(slots->room_bytes(), slot_bytes);
      const bool is_little = room_bytes < slot_bytes / 2;
      const bool will_be_more = lane_.pieces.in_use() != carrier_.orphans();
      if (is_little && will_be_more) return Launch::waits;
      part.takes_long_slot = !is_little;
    }
    if (!part.takes_long_slot) part.hold->give_up_long_slots();
  }
  const auto next = cutter_.next(part, room_bytes);
  if (!next) return Launch::finished;
  return part.plan.path == Path::device ? start_straight(part, *next, now) : start_from_host(part, *next, now);
}

Launch Launcher::start_straight(Part& part, const NextPiece& next, TimePoint now) {
  StoreEntry& direct = *next.entry->for_device(lane_.environment);
  if (!has_queue(direct.engine())) {
    Cutter::fail_unit(part, queue_failure_);
    return Launch::started;
  }
  if (next.cut.length >= Flow::counted_from_bytes && !has_flow(direct.flow(part.hold->direction))) return Launch::waits;
  carrier_.begin(take(part, direct, {next.cut.length, Shape::plain}, {}), now);
  Cutter::advance(part, next.cut.length);
  return Launch::started;
}

// One piece between the store and host memory: the caller's, or staging.
Launch Launcher::start_from_host(Part& part, const NextPiece& next, TimePoint now) {
  const Request& request = *part.hold;
  const Span& span = *next.span;
  StoreEntry& entry = *next.entry;
  Cut piece = next.cut;
  if (!has_queue(entry.engine())) {
    Cutter::fail_unit(part, queue_failure_);
    return Launch::started;
  }
  const bool edge_in_block =
      piece.shape == Shape::edge && entry.store().writer()->edges() == engine::Writer::Edges::blocks;
  if (piece.shape == Shape::edge && !edge_in_block) return leave_edge(part, next);
  if (span.gpu != nullptr) {
    if (const Status ready = lane_.copies.get_ready(*span.gpu, request.staged_toward()); !ready) {
      if (span.transform == 0 && request.reads_straight(*span.gpu, entry)) {
        part.plan = {Path::device, Reason::straight};
        return start_straight(part, next, now);
      }
      Cutter::fail_unit(part, ready.error().code, &ready.error());
      return Launch::started;
    }
  }
  // Cached bytes are copied inside poll: the next slot has to wait, or the first would not be on its way meanwhile.
  const std::uint64_t worth_bytes = std::min(slot_worth_bytes, lane_.environment.options.staging_slot_bytes);
  const bool fills_slot = span.gpu != nullptr && part.plan.path == Path::cached && piece.length >= worth_bytes;
  const bool takes_long_slot = fills_slot && part.takes_long_slot;
  // Of long slots, the next is filled while the last threads are busy with one.
  const bool is_driven = lane_.settings.runner == Runner::one_caller;
  const bool is_limited = fills_slot && (!takes_long_slot || is_driven);
  if (is_limited && lane_.slots_filling >= (takes_long_slot ? 2 : 1)) return Launch::full;
  const bool is_counted = is_past_cache(part.plan.path) && piece.length >= Flow::counted_from_bytes;
  if (is_counted && !has_flow(entry.flow(request.direction))) return Launch::waits;
  StagingArena::Block block;
  std::unique_ptr<Making> making;
  const Maker maker = span.transform != 0 ? maker_of(request, span) : Maker::nobody;
  if (piece.shape == Shape::staged || edge_in_block) {
    const std::uint64_t alignment = part.plan.path == Path::direct ? entry.alignment(request.direction) : 1;
    const std::uint64_t around = align_up(next.offset + piece.length, alignment) - align_down(next.offset, alignment);
    const std::uint64_t made_at = align_up(around, made_alignment);
    const std::uint64_t needed = maker == Maker::cpu_for_gpu ? made_at + span.length : around;
    const auto arena = takes_long_slot ? lane_.staging.long_slots() : staging_for(entry, span, needed);
    if (arena) {
      const auto taken = (*arena)->take(needed);
      if (!taken) return takes_long_slot ? Launch::waits : Launch::full;
      block = *taken;
      if (maker != Maker::nobody) {
        auto begun = begin_making(request, span, maker, block.data + made_at);
        if (!begun) {
          block.arena->give_back(block);
          Cutter::fail_unit(part, begun.error().code, &begun.error());
          return Launch::started;
        }
        making = std::move(*begun);
      }
    } else if (!span.is_out_of_reach && Cutter::may_be_buffered(request, entry, span)) {
      // Without staging memory the page cache can still take what the device can't.
      piece.shape = Shape::plain;
      part.plan = {Path::buffered, Reason::no_direct, false};
    } else {
      Cutter::fail_unit(part, arena.error().code, &arena.error());
      return Launch::started;
    }
  }
  const std::uint32_t index = take(part, entry, piece, block);
  if (takes_long_slot) {
    lane_.pieces[index].op.is_shared = true;
    lane_.pieces[index].op.attached = nullptr;
  }
  if (is_limited) {
    lane_.pieces[index].fills_slot = true;
    ++lane_.slots_filling;
  }
  if (making) {
    lane_.pieces[index].making = std::move(making);
    lane_.pieces[index].memory_bytes = piece.length = span.length;
  }
  carrier_.begin(index, now);
  Cutter::advance(part, piece.length);
  return Launch::started;
}

// REQUIRES: it is transformed. A kernel could stand behind a stream that waits for us.
Maker Launcher::maker_of(const Request& request, const Span& span) {
  if (span.gpu == nullptr) return Maker::cpu;
  const TransformUse* const use = request.transform_of(span);
  const bool may_use_gpu = use->is_for_gpu && span.gpu->stream_waits().load(std::memory_order_relaxed) == 0;
  if (!may_use_gpu) return Maker::cpu_for_gpu;
  const auto scratch = lane_.copies.scratch(*span.gpu, lane_.environment.options.staging_slot_bytes);
  return scratch || lane_.staging.host_to_device() ? Maker::gpu : Maker::cpu_for_gpu;
}

Result<std::unique_ptr<Making>> Launcher::begin_making(const Request& request, const Span& span, Maker maker,
                                                       std::byte* made) {
  std::unique_ptr<Making> making(new (std::nothrow) Making);
  if (!making) return out_of_memory();
  making->stored = &request.transform_of(span)->stored;
  making->transform = making->stored->transform;
  if (maker == Maker::cpu_for_gpu) making->made = made;
  if (maker != Maker::gpu) return making;
  auto status = or_out_of_memory(
      [&] { return cuda::ControlMemory::of_process().take(*span.gpu, cuda::ControlMemory::other_word_bytes); });
  if (!status) return std::move(status).error();
  making->status = *status;
  std::memset(status->host, 0, sizeof(std::uint32_t));
  making->by_gpu = true;
  const auto scratch = lane_.copies.scratch(*span.gpu, lane_.environment.options.staging_slot_bytes);
  if (scratch) making->scratch = *scratch;
  return making;
}

Launch Launcher::leave_edge(Part& part, const NextPiece& next) const {
  if (Cutter::may_be_buffered(*part.hold, *next.entry, *next.span)) {
    part.do_or_stop([&] { part.edges.push_back({part.range, part.position, next.cut.length}); });
  } else {
    part.add_failure({part.range, next.offset, next.cut.length, Code::no_route, 0});
  }
  Cutter::advance(part, next.cut.length);
  return Launch::started;
}

Launch Launcher::start_edge(Part& part, TimePoint now) {
  const Request& request = *part.hold;
  while (part.next_edge == request.parts[part.next_edge_part].edges.size()) {
    part.next_edge = 0;
    if (++part.next_edge_part == request.parts.size()) return Launch::finished;
  }
  const Edge& edge = request.parts[part.next_edge_part].edges[part.next_edge];
  const Span& span = request.spans[edge.range];
  StoreEntry& entry = *request.stores[span.store].entry;
  const auto fail_edge = [&](Code code, const Error* cause) {
    ++part.next_edge;
    part.add_failure({edge.range, span.offset + edge.position, edge.length, code, 0}, cause);
    return Launch::started;
  };
  if (!has_queue(entry.engine())) return fail_edge(queue_failure_, nullptr);
  StagingArena::Block block;
  if (span.gpu != nullptr) {
    const Status ready = lane_.copies.get_ready(*span.gpu, request.staged_toward());
    if (!ready) return fail_edge(ready.error().code, &ready.error());
  }
  if (span.is_out_of_reach) {
    const auto arena = staging_for(entry, span, edge.length);
    if (!arena) return fail_edge(arena.error().code, &arena.error());
    const auto taken = (*arena)->take(edge.length);
    if (!taken) return Launch::full;
    block = *taken;
  }
  ++part.next_edge;
  part.range = edge.range;
  part.position = edge.position;
  part.plan.path = Path::buffered;
  carrier_.begin(take(part, entry, {edge.length, Shape::edge}, block), now);
  return Launch::started;
}

Launch Launcher::start_flush(Part& part, TimePoint now) {
  const Request& request = *part.hold;
  if (part.next_flush == request.stores.size()) return Launch::finished;
  StoreEntry& entry = *request.stores[part.next_flush].entry;
  if (!has_queue(entry.engine())) {
    ++part.next_flush;
    part.add_failure({0, 0, 0, queue_failure_, 0});
    return Launch::started;
  }
  const std::uint32_t index = lane_.pieces.take();
  Piece& piece = lane_.pieces[index];
  piece.part = &part;
  piece.entry = &entry;
  piece.phase = Piece::Phase::flush;
  piece.range = part.next_flush++;
  piece.op.kind = OpKind::flush;
  piece.op.store = &entry.store();
  ++part.in_flight;
  carrier_.begin(index, now);
  return Launch::started;
}

std::uint32_t Launcher::take(Part& part, StoreEntry& entry, const Cut& cut, const StagingArena::Block& block) {
  const std::uint32_t index = lane_.pieces.take();
  Piece& piece = lane_.pieces[index];
  const Request& request = *part.hold;
  const Span& span = request.spans[part.range];
  piece.part = &part;
  piece.entry = &entry;
  piece.gpu = span.gpu;
  piece.is_out_of_reach = span.is_out_of_reach;
  piece.range = part.range;
  const bool is_reached = !span.is_out_of_reach || span.gpu != nullptr || span.transform != 0;
  piece.reason = is_reached ? part.plan.reason : Reason::out_of_reach;
  piece.user = span.memory != nullptr ? span.memory + part.position : nullptr;
  piece.offset = span.offset + part.position;
  piece.length = cut.length;
  piece.memory_bytes = cut.length;
  piece.span_bytes = cut.length;
  piece.staging = block;
  piece.op = {.kind = request.kind,
              .path = part.plan.path,
              .store = &entry.store(),
              .memory = piece.user,
              .attached = span.attached,
              .starts_writeback =
                  part.plan.path == Path::buffered && request.durable && request.total_bytes >= writeback_worth_bytes};
  if (part.plan.drop_after || part.plan.fill_after) {
    part.do_or_stop([&] { part.afterwards.push_back({span.store, part.plan.fill_after, piece.offset, piece.length}); });
  }
  if (request.direction == Direction::read) entry.note_path(part.plan.path);
  if (part.plan.path == Path::direct && request.reads_again_are_cached(span)) {
    lane_.environment.caching.note(entry.cached_file(), piece.offset, piece.length);
  }
  if (piece.is_staged()) piece.op.attached = lane_.staging.attached_to(entry.engine());
  const bool in_blocks = piece.is_staged() && part.plan.path == Path::direct;
  if (in_blocks) widen_to_blocks(piece, request.direction);
  if (cut.shape == Shape::edge) {
    piece.reason = Reason::edge;
    if (in_blocks) {
      piece.phase = Piece::Phase::lock_block;
    } else {
      piece.op.path = Path::buffered;
    }
  }
  enter_flow(piece, part);
  ++part.in_flight;
  return index;
}

void Launcher::widen_to_blocks(Piece& piece, Direction direction) const {
  const std::uint64_t alignment = piece.entry->alignment(direction);
  piece.lead = piece.offset % alignment;
  std::uint64_t end = align_up(piece.offset + piece.length, alignment);
  // A disk may end within what is a block to us. What is past the end of a file is read as nothing.
  const StoreInfo& info = piece.entry->info();
  if (info.kind == StoreKind::block_device && piece.offset + piece.length <= info.size_bytes) {
    end = std::min(end, info.size_bytes);
  }
  piece.span_bytes = end - (piece.offset - piece.lead);
}

void Launcher::enter_flow(Piece& piece, const Part& part) {
  if (piece.length < Flow::counted_from_bytes) return;
  if (piece.user != nullptr && is_past_cache(piece.op.path)) piece.flow = &piece.entry->flow(part.hold->direction);
  // Through the page cache, an operation is one that a thread waits for, however long it is.
  const std::uint64_t chunk = lane_.environment.options.storage_chunk_bytes;
  piece.flow_bytes = piece.flow != nullptr ? piece.length : std::min(piece.length, chunk);
  if (piece.flow != nullptr) {
    lane_.flow.begin(*piece.flow, piece.flow_bytes);
  } else {
    lane_.cached_bytes += piece.flow_bytes;
  }
}

}  // namespace penstock::core
