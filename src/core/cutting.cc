// The lane's first half: taking units, choosing their way, cutting them into pieces.
#include <algorithm>

#include "core/lane.h"

namespace penstock::core {

using engine::OpKind;
using engine::Path;

namespace {

// Of a group of short ranges, so many are asked about; if they agree, the rest is taken to be alike. A wrong guess
// costs speed, never bytes.
constexpr std::uint32_t residency_samples = 8;

// GPUDirect Storage moves whole blocks between aligned places.
constexpr std::uint64_t device_alignment = 4096;

constexpr std::uint64_t slot_worth_bytes = 256 << 10;

// Each operation on a network or FUSE mount costs a thread its whole latency, so it should be worth it.
constexpr std::uint64_t remote_chunks = 4;

// Whether `next` is the same long range, from where `unit` ends.
bool continues(const Unit& unit, const Unit& next) {
  return unit.count == 1 && next.count == 1 && next.first == unit.first && next.begin == unit.begin + unit.length;
}

Residency compare(std::uint64_t resident, std::uint64_t length) {
  if (resident >= length) return Residency::all;
  return resident == 0 ? Residency::none : Residency::some;
}

}  // namespace

void Lane::cut_work(TimePoint now) {
  const Part* first_put_off = nullptr;
  while (cutting_first_ != nullptr && !free_.empty() && bytes_in_flight_ < bytes_allowed_) {
    Part& part = *cutting_first_;
    CutResult result = cut_next(part, now);
    if (result == CutResult::blocked) return;
    if (result == CutResult::put_off) {
      pop_cutting();
      push_cutting(part);
      if (first_put_off == &part) return;
      if (first_put_off == nullptr) first_put_off = &part;
      continue;
    }
    if (first_put_off == &part) first_put_off = nullptr;
    const bool unit_is_cut = part.unit.count == 0 && part.stage == Stage::transfer;
    // Known at once, a part that has no more to cut ends with its last operation and not a step later.
    const bool was_last = part.claimed == part.claimed_end && !part.hold->has_more_units();
    if (unit_is_cut && was_last) result = CutResult::exhausted;
    if (result == CutResult::exhausted) {
      pop_cutting();
      part.exhausted = true;
      settle(part);
    } else if (unit_is_cut && part.next_cutting != nullptr) {
      // After each unit the next request has its turn: a short one does not wait for a long one to end.
      pop_cutting();
      push_cutting(part);
    }
  }
}

Lane::CutResult Lane::cut_next(Part& part, TimePoint now) {
  if (part.stage == Stage::edges) return cut_edge(part, now);
  if (part.stage == Stage::flush) return cut_flush(part, now);
  if (part.unit.count == 0 && !next_unit(part)) return CutResult::exhausted;
  const Request& request = *part.hold;
  const Span& span = request.spans[part.range];
  StoreEntry& entry = *request.stores[span.store].entry;
  const std::uint64_t end = part.unit.count == 1 ? part.unit.begin + part.unit.length : span.length;
  // Where there is no memory, every place in it is aligned.
  const auto memory = reinterpret_cast<std::uintptr_t>(span.memory);
  Rest rest{span.offset + part.position, end - part.position, memory != 0 ? memory + part.position : 0};
  if (rest.length == 0) {
    advance(part, 0);
    return CutResult::cut;
  }
  if (part.plan_each_piece) {
    // What was asked about is what the plan is for.
    rest.length = std::min(rest.length, environment_->options.storage_chunk_bytes);
    plan_window_at(part, entry, rest.offset, rest.length);
  }

  if (part.no_route) {
    fail_unit(part, Code::no_route);
    return CutResult::cut;
  }
  Cut piece = cut(cut_rules(part, entry, span), rest);
  if (part.plan.path == Path::device) {
    // Where there is no way around, the engine has to see to alignment itself.
    if (piece.shape == Shape::plain || !entry.from_host()) return cut_straight(part, entry, piece.length, now);
    // Ends and places that aren't aligned go through the host; what comes after may go straight again.
    rest.length = std::min(rest.length, environment_->options.storage_chunk_bytes);
    if (!plan_around_device(part, entry, rest)) {
      fail_unit(part, Code::no_route);
      return CutResult::cut;
    }
    piece = cut(cut_rules(part, entry, span), rest);
  }
  if (queue_of(entry.engine()) == nullptr) {
    fail_unit(part, queue_failure_);
    return CutResult::cut;
  }
  const CutResult result = cut_from_host(part, entry, rest, piece, now);
  // Also where the piece has to wait: when its turn comes again, the way around is chosen for it anew.
  if (part.goes_straight) part.plan = {Path::device, Reason::straight};
  return result;
}

Lane::CutResult Lane::cut_straight(Part& part, StoreEntry& entry, std::uint64_t length, TimePoint now) {
  StoreEntry& direct = *entry.for_device(*environment_);
  if (queue_of(direct.engine()) == nullptr) {
    fail_unit(part, queue_failure_);
    return CutResult::cut;
  }
  begin(start(part, direct, {length, Shape::plain}, {}), now);
  advance(part, length);
  return CutResult::cut;
}

// One piece between the store and host memory: the caller's, or staging.
Lane::CutResult Lane::cut_from_host(Part& part, StoreEntry& entry, const Rest& rest, Cut piece, TimePoint now) {
  const Request& request = *part.hold;
  const Span& span = request.spans[part.range];
  const bool edge_in_block =
      piece.shape == Shape::edge && entry.store().writer()->edges() == engine::Writer::Edges::blocks;
  if (piece.shape == Shape::edge && !edge_in_block) {
    if (may_be_buffered(request, entry, span)) {
      or_stop(part, [&] { part.edges.push_back({part.range, part.position, piece.length}); });
    } else {
      add_failure(part, {part.range, rest.offset, piece.length, Code::no_route, 0});
    }
    advance(part, piece.length);
    return CutResult::cut;
  }
  if (span.gpu != nullptr) {
    if (const Status ready = get_ready(*span.gpu, request.staged_toward()); !ready) {
      if (request.reads_straight(*span.gpu, entry)) {
        part.plan = {Path::device, Reason::straight};
        return cut_straight(part, entry, piece.length, now);
      }
      if (ready.error().code == Code::would_deadlock) return put_off(part, now);
      fail_unit(part, ready.error().code, &ready.error());
      return CutResult::cut;
    }
  }
  // Cached bytes are copied inside poll: the next slot has to wait, or the first would not be on its way meanwhile.
  const bool fills_slot = span.gpu != nullptr && part.plan.path == Path::cached && piece.length >= slot_worth_bytes;
  if (fills_slot && slots_filling_ != 0) return CutResult::blocked;
  const bool in_window = goes_through_window(part, span);
  if (in_window && !window_.has_room()) return CutResult::blocked;
  StagingArena::Block block;
  if (piece.shape == Shape::staged || edge_in_block) {
    const std::uint64_t alignment = part.plan.path == Path::direct ? entry.alignment(request.direction) : 1;
    const std::uint64_t around = align_up(rest.offset + piece.length, alignment) - align_down(rest.offset, alignment);
    const auto arena = staging_for(around);
    if (arena) {
      const auto taken = (*arena)->take(around);
      if (!taken) return CutResult::blocked;
      block = *taken;
    } else if (span.gpu == nullptr && may_be_buffered(request, entry, span)) {
      // Without staging memory the page cache can still take what the device can't.
      piece.shape = Shape::plain;
      part.plan = {Path::buffered, Reason::no_direct, false};
    } else {
      fail_unit(part, arena.error().code, &arena.error());
      return CutResult::cut;
    }
  }
  const std::uint32_t index = start(part, entry, piece, block);
  flights_[index].fills_slot = fills_slot;
  if (fills_slot) ++slots_filling_;
  flights_[index].in_window = in_window;
  if (in_window) window_.begin(piece.length);
  begin(index, now);
  advance(part, piece.length);
  return CutResult::cut;
}

Result<StagingArena*> Lane::staging_for(std::uint64_t bytes) {
  auto arena = staging();
  if (!arena || bytes <= (*arena)->largest_bytes()) return arena;
  return Error{Code::unsupported, 0,
               std::to_string(bytes) + " bytes in whole blocks of the store don't fit the " +
                   std::to_string((*arena)->largest_bytes()) + " bytes of a lane's staging memory",
               "raise staging_slot_bytes"};
}

bool Lane::goes_through_window(const Part& part, const Span& span) {
  return span.gpu != nullptr && part.plan.path == Path::direct;
}

bool Lane::plan_around_device(Part& part, StoreEntry& entry, const Rest& rest) {
  part.goes_straight = true;
  plan_window_at(part, entry, rest.offset, rest.length, true);
  return !part.no_route;
}

bool Lane::may_be_buffered(const Request& request, const StoreEntry& entry, const Span& span) const {
  const Route route = span.gpu != nullptr ? Route::buffered_staged : Route::buffered;
  return entry.info().page_cache && (request.allowed & route_bit(route)) != 0;
}

Lane::CutResult Lane::cut_edge(Part& part, TimePoint now) {
  const Request& request = *part.hold;
  while (part.next_edge == request.parts[part.next_edge_part].edges.size()) {
    part.next_edge = 0;
    if (++part.next_edge_part == request.parts.size()) return CutResult::exhausted;
  }
  const Edge& edge = request.parts[part.next_edge_part].edges[part.next_edge];
  const Span& span = request.spans[edge.range];
  StoreEntry& entry = *request.stores[span.store].entry;
  const auto fail_edge = [&](Code code, const Error* cause) {
    ++part.next_edge;
    add_failure(part, {edge.range, span.offset + edge.position, edge.length, code, 0}, cause);
    return CutResult::cut;
  };
  if (queue_of(entry.engine()) == nullptr) return fail_edge(queue_failure_, nullptr);
  StagingArena::Block block;
  if (span.gpu != nullptr) {
    const Status ready = get_ready(*span.gpu, request.staged_toward());
    if (!ready && ready.error().code == Code::would_deadlock) return put_off(part, now);
    if (!ready) return fail_edge(ready.error().code, &ready.error());
    const auto arena = staging_for(edge.length);
    if (!arena) return fail_edge(arena.error().code, &arena.error());
    const auto taken = (*arena)->take(edge.length);
    if (!taken) return CutResult::blocked;
    block = *taken;
  }
  ++part.next_edge;
  part.range = edge.range;
  part.position = edge.position;
  part.plan.path = Path::buffered;
  begin(start(part, entry, {edge.length, Shape::edge}, block), now);
  return CutResult::cut;
}

Lane::CutResult Lane::cut_flush(Part& part, TimePoint now) {
  const Request& request = *part.hold;
  if (part.next_flush == request.stores.size()) return CutResult::exhausted;
  StoreEntry& entry = *request.stores[part.next_flush].entry;
  if (queue_of(entry.engine()) == nullptr) {
    ++part.next_flush;
    add_failure(part, {0, 0, 0, queue_failure_, 0});
    return CutResult::cut;
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Flight& flight = flights_[index];
  flight.part = &part;
  flight.entry = &entry;
  flight.phase = Phase::flush;
  flight.range = part.next_flush++;
  flight.op.kind = OpKind::flush;
  flight.op.store = &entry.store();
  ++part.in_flight;
  send(index, now);
  return CutResult::cut;
}

bool Lane::next_unit(Part& part) {
  Request& request = *part.hold;
  if (part.claimed == part.claimed_end) {
    const auto claim = request.claim_units(window_.piece_bytes());
    if (claim.begin == claim.end) return false;
    part.claimed = claim.begin;
    part.claimed_end = claim.end;
  }
  part.unit = request.units[part.claimed++];
  while (part.claimed != part.claimed_end && continues(part.unit, request.units[part.claimed])) {
    part.unit.length += request.units[part.claimed++].length;
  }
  part.range = part.unit.first;
  part.position = part.unit.begin;
  plan_unit(part);
  request.prefer_long(part.plan.path != Path::direct);
  return true;
}

void Lane::advance(Part& part, std::uint64_t bytes) {
  part.position += bytes;
  const Span& span = part.hold->spans[part.range];
  if (part.unit.count == 1) {
    if (part.position >= part.unit.begin + part.unit.length) part.unit.count = 0;
    return;
  }
  if (part.position < span.length) return;
  part.position = 0;
  ++part.range;
  if (part.range == part.unit.first + part.unit.count) part.unit.count = 0;
}

void Lane::plan_unit(Part& part) {
  const Request& request = *part.hold;
  const Unit& unit = part.unit;
  StoreEntry& entry = *request.stores[request.spans[unit.first].store].entry;
  part.plan_each_piece = false;
  part.goes_straight = false;
  if (unit.count == 1) {
    const Span& span = request.spans[unit.first];
    const Residency residency = plan_window_at(part, entry, span.offset + unit.begin, unit.length);
    part.plan_each_piece = residency == Residency::some && unit.length > environment_->options.storage_chunk_bytes;
    return;
  }
  const std::uint32_t stride = std::max(1U, unit.count / residency_samples);
  std::optional<Residency> agreed;
  for (std::uint32_t i = 0; i < unit.count; i += stride) {
    const Span& span = request.spans[unit.first + i];
    if (span.length == 0) continue;
    const Residency residency = plan_window_at(part, entry, span.offset, span.length);
    if (residency == Residency::unknown) return;  // nobody needs to know
    if (agreed && *agreed != residency) {
      part.plan_each_piece = true;
      return;
    }
    agreed = residency;
  }
}

Residency Lane::plan_window_at(Part& part, StoreEntry& entry, std::uint64_t offset, std::uint64_t length,
                               bool around_device) {
  const cuda::Device* gpu = part.hold->spans[part.range].gpu;
  WindowFacts facts{.direction = part.hold->direction,
                    .locality = entry.info().locality,
                    .direct = entry.from_host() && entry.direct(),
                    .page_cache = entry.from_host() && entry.info().page_cache,
                    .cache = environment_->options.cache,
                    .allowed = part.hold->allowed,
                    .gpu = gpu != nullptr};
  if (gpu != nullptr && !around_device) {
    const StoreEntry* direct = entry.for_device(*environment_);
    if (direct != nullptr) facts.device_route = direct->store().device_route_to(gpu->info());
  }
  if (wants_residency(facts)) facts.residency = residency_of(part, entry, offset, length);
  const auto plan = plan_window(facts);
  part.no_route = !plan;
  if (plan) part.plan = *plan;
  return facts.residency;
}

Residency Lane::residency_of(Part& part, StoreEntry& entry, std::uint64_t offset, std::uint64_t length) {
  engine::PageCache* cache = entry.store().page_cache();
  if (const auto resident = cache->resident_bytes_at_once(offset, length)) return compare(*resident, length);
  const std::uint32_t store = part.hold->spans[part.unit.first].store;
  if (part.sampled == Residency::unknown || part.sampled_store != store) {
    part.sampled = entry.sample_residency(offset, length);
    part.sampled_store = store;
  }
  return part.sampled;
}

CutRules Lane::cut_rules(const Part& part, const StoreEntry& entry, const Span& span) const {
  const std::uint64_t alignment = entry.alignment(part.hold->direction);
  const bool remote = is_remote(entry.info().locality);
  const Options& options = environment_->options;
  const bool straight = part.plan.path == Path::device;
  // Written in long pieces: a file system has to note the extents of each.
  const bool reads_to_gpu = span.gpu != nullptr && part.hold->direction == Direction::read;
  // Units to a GPU are short, and lanes take several from wherever the last lane stopped.
  const std::uint64_t chunk =
      align_up(reads_to_gpu ? std::min(options.storage_chunk_bytes, StagedWindow::least_piece_bytes)
                            : options.storage_chunk_bytes,
               alignment);
  // A copy engine is at its best from a whole slot at a time, and each operation on a distant mount should be worth its
  // latency; a disk is content with less.
  std::uint64_t longest = options.storage_chunk_bytes;
  if (reads_to_gpu && goes_through_window(part, span)) {
    longest = window_.piece_bytes();
  } else if (straight || (span.gpu != nullptr && part.plan.path == Path::cached)) {
    longest = std::max(longest, options.staging_slot_bytes);
  } else if (span.memory == nullptr) {
    longest = memoryless_bytes_most;
  } else if (remote) {
    longest *= remote_chunks;
  }
  longest = std::max(chunk, longest / chunk * chunk);
  // Half of a short arena: the other half is filled meanwhile.
  const std::uint64_t slot = std::min(options.staging_slot_bytes, settings_.staging_bytes / 2);
  const bool through_cache = part.plan.path == Path::cached || part.plan.path == Path::buffered;
  return {.direction = part.hold->direction,
          .path = part.plan.path,
          .chunk_bytes = chunk,
          .longest_bytes = longest,
          .alignment = alignment,
          .memory_alignment = straight ? device_alignment : entry.info().alignments.memory,
          .staged_only = span.gpu != nullptr && !straight,
          .staging_bytes = align_down(std::min(longest, slot), through_cache ? 1 : alignment)};
}

std::uint32_t Lane::start(Part& part, StoreEntry& entry, const Cut& piece, const StagingArena::Block& block) {
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Flight& flight = flights_[index];
  const Request& request = *part.hold;
  const Span& span = request.spans[part.range];
  flight.part = &part;
  flight.entry = &entry;
  flight.gpu = span.gpu;
  flight.phase = Phase::transfer;
  flight.range = part.range;
  flight.reason = part.plan.reason;
  flight.user = span.memory != nullptr ? span.memory + part.position : nullptr;
  flight.offset = span.offset + part.position;
  flight.length = piece.length;
  flight.lead = 0;
  flight.span_bytes = piece.length;
  flight.staging = block;
  flight.op = {
      .kind = request.kind, .path = part.plan.path, .store = &entry.store(), .memory = flight.user, .key = span.key};
  if (part.plan.drop_after) or_stop(part, [&] { part.to_drop.push_back({span.store, flight.offset, flight.length}); });
  if (block.data != nullptr) {
    flight.op.memory = block.data;
    flight.op.key = staging_key(entry.engine());
  }
  if (block.data != nullptr && part.plan.path == Path::direct) {
    const std::uint64_t alignment = entry.alignment(request.direction);
    flight.lead = flight.offset % alignment;
    std::uint64_t end = align_up(flight.offset + flight.length, alignment);
    // A disk may end within what is a block to us. What is past the end of a file is read as nothing.
    const StoreInfo& info = entry.info();
    if (info.kind == StoreKind::block_device && flight.offset + flight.length <= info.size_bytes) {
      end = std::min(end, info.size_bytes);
    }
    flight.span_bytes = end - (flight.offset - flight.lead);
  }
  if (piece.shape == Shape::edge) {
    flight.reason = Reason::edge;
    if (block.data != nullptr && part.plan.path == Path::direct) {
      flight.phase = Phase::lock_block;
    } else {
      flight.op.path = Path::buffered;
    }
  }
  flight.weight_bytes = is_remote(entry.info().locality) ? flight.length / remote_chunks : flight.length;
  if (flight.user == nullptr)
    flight.weight_bytes = std::min(flight.weight_bytes, environment_->options.storage_chunk_bytes);
  bytes_in_flight_ += flight.weight_bytes;
  ++part.in_flight;
  return index;
}

// What is left of the unit: each of its ranges fails.
void Lane::fail_unit(Part& part, Code code, const Error* cause) {
  while (part.unit.count != 0) {
    const Span& span = part.hold->spans[part.range];
    const std::uint64_t end = part.unit.count == 1 ? part.unit.begin + part.unit.length : span.length;
    const std::uint64_t left = end - part.position;
    if (left != 0) add_failure(part, {part.range, span.offset + part.position, left, code, 0}, cause);
    advance(part, left);
  }
}

}  // namespace penstock::core
