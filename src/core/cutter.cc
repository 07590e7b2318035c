#include "core/cutter.h"

#include <algorithm>

#include "core/long_slots.h"

namespace penstock::core {

using engine::Path;

namespace {

// GPUDirect Storage moves whole blocks between aligned places.
constexpr std::uint64_t device_alignment = 4096;

// Whether `next` is the same long range, from where `unit` ends.
bool continues(const Unit& unit, const Unit& next) {
  return unit.count == 1 && next.count == 1 && next.first == unit.first && next.begin == unit.begin + unit.length &&
         next.residency == unit.residency;
}

// What is left of the range, within the unit.
Rest rest_of(const Part& part, const Span& span) {
  const std::uint64_t end = part.unit.count == 1 ? part.unit.begin + part.unit.length : span.length;
  // Where there is no memory, every place in it is aligned.
  const auto memory = reinterpret_cast<std::uintptr_t>(span.memory);
  return {span.offset + part.position, end - part.position, memory != 0 ? memory + part.position : 0};
}

}  // namespace

std::optional<NextPiece> Cutter::next(Part& part, std::uint64_t room_bytes) const {
  while (true) {
    if (part.unit.count == 0) {
      if (!next_unit(part, room_bytes)) return std::nullopt;
      plan_unit(part);
      part.hold->expect(part.plan.path);
    }
    const Span& span = part.hold->spans[part.range];
    StoreEntry& entry = *part.hold->stores[span.store].entry;
    Rest rest = rest_of(part, span);
    if (rest.length == 0) {
      advance(part, 0);
      continue;
    }
    if (span.transform != 0) {
      const std::uint64_t stored_bytes = part.hold->stored_bytes(span);
      if (part.plan_each_piece) plan_piece(part, span.offset, stored_bytes);
      if (!part.no_route) return NextPiece{&entry, &span, span.offset, {stored_bytes, Shape::staged}};
      fail_unit(part, Code::no_route);
      continue;
    }
    // The way around the device was chosen for one piece.
    if (part.goes_straight) part.plan = {Path::device, Reason::straight};
    if (part.plan_each_piece) {
      // What was asked about is what the plan is for.
      rest.length = std::min(rest.length, environment_.options.storage_chunk_bytes);
      plan_piece(part, rest.offset, rest.length);
    }
    if (!part.no_route) {
      const Cut piece = cut_next(part, entry, span, rest);
      // Where there is no way around, the engine has to see to alignment itself.
      const bool fits = part.plan.path != Path::device || piece.shape == Shape::plain || !entry.from_host();
      if (fits) return NextPiece{&entry, &span, rest.offset, piece};
      // Ends and places that aren't aligned go through the host; what comes after may go straight again.
      part.goes_straight = true;
      rest.length = std::min(rest.length, environment_.options.storage_chunk_bytes);
      plan_window(part, part.unit.residency, {rest.offset, rest.length}, true);
      if (!part.no_route) return NextPiece{&entry, &span, rest.offset, cut_next(part, entry, span, rest)};
    }
    fail_unit(part, Code::no_route);
  }
}

bool Cutter::next_unit(Part& part, std::uint64_t room_bytes) const {
  Request& request = *part.hold;
  if (part.claimed == part.claimed_end) {
    const auto claim = request.claim_units(part, room_bytes);
    if (claim.begin == claim.end) return false;
    part.claimed = claim.begin;
    part.claimed_end = claim.end;
    request.survey.reach(request, claim.begin, claim.end);
  }
  part.unit = request.units[part.claimed++];
  while (part.claimed != part.claimed_end && continues(part.unit, request.units[part.claimed])) {
    part.unit.length += request.units[part.claimed++].length;
  }
  part.range = part.unit.first;
  part.position = part.unit.begin;
  part.rules.reset();
  return true;
}

void Cutter::advance(Part& part, std::uint64_t bytes) {
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

// Of a unit whose pieces may differ.
void Cutter::plan_piece(Part& part, std::uint64_t offset, std::uint64_t length) const {
  const std::uint32_t store = part.hold->spans[part.range].store;
  const Residency residency =
      part.unit.residency == Residency::some
          ? part.hold->survey.ask(*part.hold, {.store = store, .offset = offset, .length = length})
          : part.unit.residency;
  plan_window(part, residency, {offset, length});
}

void Cutter::plan_unit(Part& part) const {
  const Unit& unit = part.unit;
  const Request& request = *part.hold;
  const Span& span = request.spans[unit.first];
  part.goes_straight = false;
  part.stays = stays(part);
  const std::uint64_t length = span.transform != 0 ? request.stored_bytes(span) : unit.length;
  plan_window(part, unit.residency, {span.offset + unit.begin, length});
  // With cache=keep all of it goes through the page cache, whatever a closer look would say.
  const bool could_differ =
      unit.count != 1 || (span.transform == 0 && unit.length > environment_.options.storage_chunk_bytes);
  part.plan_each_piece = unit.residency == Residency::some && could_differ && request.cache != Cache::keep;
  // Of short ranges, some may be read a second time.
  part.plan_each_piece |= unit.count != 1 && part.plan.path == Path::direct && request.reads_again_are_cached(span);
}

// What of the unit is not cached.
Stays Cutter::stays(const Part& part) const {
  const Unit& unit = part.unit;
  const StoreUse& use = part.hold->stores[part.hold->spans[unit.first].store];
  if (!use.stays_cached || unit.residency == Residency::all) return Stays::no;
  const Direction direction = part.hold->direction;
  const bool is_long = unit.count == 1 && unit.length >= DiskRates::noted_from_bytes && use.entry->direct();
  const bool is_in_place = direction == Direction::write && use.entry->replacing() == nullptr;
  if (is_in_place || !is_long) return is_in_place ? use.written : Stays::file;
  return direction == Direction::write || unit.residency == Residency::none
             ? use.entry->cached_file().rates_of(direction).next(unit.length)
             : Stays::file;
}

void Cutter::plan_window(Part& part, Residency residency, Window window, bool around_device) const {
  const Span& span = part.hold->spans[part.range];
  StoreEntry& entry = *part.hold->stores[span.store].entry;
  const StoreInfo& info = entry.info();
  if (info.kind == StoreKind::made) {
    part.no_route = false;
    part.plan = {Path::cached, Reason::made};
    return;
  }
  WindowFacts facts{.direction = part.hold->direction,
                    .locality = info.locality,
                    .direct = entry.from_host() && entry.direct(),
                    .page_cache = entry.from_host() && info.page_cache,
                    .cache = part.hold->cache,
                    .allowed = part.hold->allowed,
                    .residency = residency,
                    .stays = part.stays,
                    .kind = info.kind,
                    .out_of_reach = span.is_out_of_reach || part.hold->is_inner()};
  const bool is_again = part.hold->reads_again_are_cached(span) && residency != Residency::all &&
                        environment_.caching.was_read(entry.cached_file(), window.offset, window.length);
  if (is_again) facts.stays = Stays::again;
  if (span.gpu != nullptr && span.transform == 0 && !around_device) {
    const StoreEntry* direct = entry.for_device(environment_);
    if (direct != nullptr) facts.device_route = direct->store().device_route_to(span.gpu->info());
  }
  const auto plan = core::plan_window(facts);
  part.no_route = !plan;
  if (!plan) return;
  part.plan = *plan;
  // A long write that is tried past the page cache would take too long to read again.
  const bool is_written_in_place = part.hold->direction == Direction::write && entry.replacing() == nullptr;
  if (is_written_in_place && part.hold->total_bytes > DiskRates::try_bytes) part.plan.fill_after = false;
}

Cut Cutter::cut_next(Part& part, const StoreEntry& entry, const Span& span, const Rest& rest) const {
  const std::uint64_t chunk = environment_.options.storage_chunk_bytes;
  const bool by_page_cache = part.plan.path == Path::cached || part.plan.path == Path::buffered;
  // Most short ranges: whatever the rules are, they leave it whole.
  const bool is_whole = by_page_cache && !span.is_out_of_reach && rest.offset % chunk + rest.length <= chunk;
  return is_whole ? Cut{rest.length, Shape::plain} : cut(rules_of(part, entry, span), rest);
}

// The ranges of a unit are alike. A long one is worth a look at how its store does by now.
const CutRules& Cutter::rules_of(Part& part, const StoreEntry& entry, const Span& span) const {
  const bool hold = part.rules && part.unit.count != 1 && part.rules->path == part.plan.path;
  if (!hold) part.rules = rules(part, entry, span);
  return *part.rules;
}

CutRules Cutter::rules(const Part& part, const StoreEntry& entry, const Span& span) const {
  const Options& options = environment_.options;
  const Direction direction = part.hold->direction;
  const std::uint64_t alignment = entry.alignment(direction);
  const Path path = part.plan.path;
  const bool straight = path == Path::device;
  const bool past_cache = path == Path::direct || straight;
  // Written in long pieces: a file system has to note the extents of each.
  const bool reads_to_gpu = span.gpu != nullptr && direction == Direction::read;
  // Units to a GPU are short, and lanes take several from wherever the last lane stopped.
  const std::uint64_t chunk = align_up(
      reads_to_gpu ? std::min(options.storage_chunk_bytes, Flow::least_piece_bytes) : options.storage_chunk_bytes,
      alignment);
  // A copy engine is at its best from a whole slot at a time, and a store may like longer operations; a disk is content
  // with less.
  const std::uint64_t slot_bytes = part.takes_long_slot && path == Path::cached
                                       ? LongSlots::of(options).slot_bytes
                                       // Half of a short arena: the other half is filled meanwhile.
                                       : std::min(options.staging_slot_bytes, staging_bytes_ / 2);
  std::uint64_t longest = options.storage_chunk_bytes;
  if (reads_to_gpu && path == Path::direct) {
    longest = entry.flow(direction).staged_piece_bytes();
  } else if (straight || (span.gpu != nullptr && path == Path::cached)) {
    longest = std::max({longest, options.staging_slot_bytes, slot_bytes});
  } else if (span.memory == nullptr) {
    longest = memoryless_bytes_most;
  } else {
    longest = past_cache ? entry.flow(direction).plain_piece_bytes() : longest;
    longest = std::max(longest, entry.operation_bytes());
  }
  longest = longest > chunk ? longest - longest % chunk : chunk;
  return {.direction = direction,
          .path = path,
          .chunk_bytes = chunk,
          .longest_bytes = longest,
          .alignment = alignment,
          .memory_alignment = straight ? device_alignment : entry.info().alignments.memory,
          .staged_only = span.is_out_of_reach && !straight,
          .staging_bytes = align_down(std::min(longest, slot_bytes), past_cache ? alignment : 1)};
}

bool Cutter::may_be_buffered(const Request& request, const StoreEntry& entry, const Span& span) {
  const bool is_staged = span.is_out_of_reach || request.is_inner();
  const Route route = is_staged ? Route::buffered_staged : Route::buffered;
  return entry.info().page_cache && (request.allowed & route_bit(route)) != 0;
}

void Cutter::fail_unit(Part& part, Code code, const Error* cause) {
  while (part.unit.count != 0) {
    const Rest rest = rest_of(part, part.hold->spans[part.range]);
    if (rest.length != 0) part.add_failure({part.range, rest.offset, rest.length, code, 0}, cause);
    advance(part, rest.length);
  }
}

}  // namespace penstock::core
