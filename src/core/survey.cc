#include "core/survey.h"

#include <algorithm>
#include <new>
#include <optional>
#include <span>

#include "core/environment.h"
#include "core/request.h"

namespace penstock::core {

namespace {

// Farther than kernels read ahead: usually 128 KiB, and some mebibytes where somebody wants much.
constexpr std::uint64_t read_ahead_most_bytes = 16 << 20;

// Where pages are looked at one by one: so much is asked about before any of it is read.
constexpr std::uint64_t guessed_at_once_bytes = 1 << 30;

constexpr std::uint32_t misses_in_a_row = 16;
constexpr std::uint32_t looked_at_one_in = 8;

// Of a group of short ranges, so many are asked about; if they agree, the rest is taken to be alike. A wrong guess
// costs speed, never bytes.
constexpr std::uint32_t residency_samples = 8;

Residency compare(std::uint64_t resident, std::uint64_t length) {
  if (resident >= length) return Residency::all;
  return resident == 0 ? Residency::none : Residency::some;
}

bool wants_residency_of(const Request& request, const StoreEntry& entry) {
  return entry.info().kind != StoreKind::made &&
         wants_residency({.direction = request.direction,
                          .locality = entry.info().locality,
                          .direct = entry.from_host() && entry.direct(),
                          .page_cache = entry.from_host() && entry.info().page_cache,
                          .cache = request.cache});
}

}  // namespace

void Survey::reach(Request& request, std::uint32_t end) {
  const auto count = static_cast<std::uint32_t>(request.units.size());
  const auto with = [&](std::uint64_t bytes) {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(count, end + bytes / request.unit_bytes()));
  };
  std::uint32_t wanted = with(read_ahead_most_bytes);
  if (asked_.load(std::memory_order_acquire) >= wanted) return;
  const std::lock_guard lock(mutex_);
  const std::uint32_t asked = asked_.load(std::memory_order_relaxed);
  // From the end: to look at a page may make the kernel read ahead of it, too. Each look at a page that is not there is
  // a read; where many in a row were not, only some are looked at.
  std::uint32_t missing = 0;
  for (std::uint32_t at = wanted; at > asked;) {
    Unit& unit = request.units[--at];
    const bool is_skipped = missing >= misses_in_a_row && missing % looked_at_one_in != 0;
    unit.residency = is_skipped ? Residency::likely_none : ask_about(request, unit);
    missing = unit.residency == Residency::likely_none ? missing + 1 : 0;
    const bool guesses = unit.residency == Residency::likely_all || unit.residency == Residency::likely_none;
    if (guesses && at + 1 == wanted && wanted < with(guessed_at_once_bytes)) {
      wanted = with(guessed_at_once_bytes);
      at = wanted;
    }
  }
  asked_.store(std::max(asked, wanted), std::memory_order_release);
}

Residency Survey::ask(const Request& request, const Stretch& stretch) {
  const std::lock_guard lock(mutex_);
  return ask_locked(request, stretch);
}

// Some: also if the ranges of a group differ.
Residency Survey::ask_about(const Request& request, const Unit& unit) {
  const std::uint32_t store = request.spans[unit.first].store;
  if (!wants_residency_of(request, *request.stores[store].entry)) return Residency::unknown;
  if (unit.count == 1) {
    const Span& span = request.spans[unit.first];
    const std::uint64_t length = span.transform != 0 ? request.stored_bytes(span) : unit.length;
    return ask_locked(request, {store, span.offset + unit.begin, length});
  }
  const std::uint32_t stride = std::max(1U, unit.count / residency_samples);
  std::optional<Residency> agreed;
  for (std::uint32_t i = 0; i < unit.count; i += stride) {
    const Span& span = request.spans[unit.first + i];
    if (span.length == 0) continue;
    const Residency residency = ask_locked(request, {store, span.offset, request.stored_bytes(span)});
    if (agreed.value_or(residency) != residency) return Residency::some;
    agreed = residency;
  }
  return agreed.value_or(Residency::unknown);
}

// REQUIRES: mutex_
Residency Survey::ask_locked(const Request& request, const Stretch& stretch) {
  StoreEntry& entry = *request.stores[stretch.store].entry;
  if (const auto resident = entry.store().page_cache()->resident_bytes(stretch.offset, stretch.length)) {
    return compare(*resident, stretch.length);
  }
  if (const auto guess = entry.guess_residency(stretch.offset, stretch.length)) {
    if (!guess->missing) return Residency::likely_all;
    try {
      const std::uint64_t page = request.environment().machine.page_bytes;
      brought_.push_back({stretch.store, *guess->missing / page * page, page});
    } catch (const std::bad_alloc&) {  // then the page stays
    }
    return Residency::likely_none;
  }
  if (timed_entry_ != &entry) {
    timed_ = entry.sample_residency(stretch.offset, stretch.length);
    timed_entry_ = &entry;
  }
  return timed_;
}

void Survey::add_leftovers(const Request& request, std::vector<Stretch>& leftovers) const {
  if (request.cache != Cache::automatic) return;
  leftovers.insert(leftovers.end(), brought_.begin(), brought_.end());
  Stretch cached;  // the last unit that was
  for (const Unit& unit : std::span(request.units.data(), asked_.load(std::memory_order_relaxed))) {
    if (unit.count != 1) continue;
    const Span& span = request.spans[unit.first];
    const Stretch here{span.store, span.offset + unit.begin, unit.length};
    if (unit.residency == Residency::all) cached = here;
    const bool is_ahead = cached.length != 0 && cached.store == here.store && here.offset > cached.offset &&
                          here.offset - cached.offset <= cached.length + read_ahead_most_bytes;
    // Only what was certainly not cached before may be dropped: the rest is somebody's.
    if (unit.residency == Residency::none && is_ahead) leftovers.push_back(here);
  }
}

}  // namespace penstock::core
