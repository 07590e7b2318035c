#include "core/survey.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <new>
#include <optional>

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

bool is_guess(Residency residency) {
  return residency == Residency::likely_all || residency == Residency::likely_none;
}

void await_residency(Unit& unit) {
  std::atomic_ref(unit.is_asked).wait(false, std::memory_order_acquire);
}

bool wants_residency_of(const Request& request, const StoreEntry& entry) {
  const StoreInfo& info = entry.info();
  return info.kind != StoreKind::made && wants_residency({.direction = request.direction,
                                                          .locality = info.locality,
                                                          .direct = entry.from_host() && entry.direct(),
                                                          .page_cache = entry.from_host() && info.page_cache,
                                                          .cache = request.cache});
}

}  // namespace

// Lanes that come at once find the same.
bool Survey::is_needed(const Request& request) {
  Need need = need_.load(std::memory_order_relaxed);
  if (need == Need::unknown) {
    const bool some =
        std::ranges::any_of(request.stores, [&](const auto& use) { return wants_residency_of(request, *use.entry); });
    need = some ? Need::some : Need::none;
    need_.store(need, std::memory_order_relaxed);
  }
  return need == Need::some;
}

void Survey::reach(Request& request, std::uint32_t begin, std::uint32_t end) {
  if (request.assumes_cached()) {
    for (std::uint32_t at = begin; at < end; ++at) tell(request.units[at], Residency::all);
    return;
  }
  if (request.units.size() == 1) {  // whose lane shares it with nobody
    request.units[0].residency = ask_about(request, request.units[0]);
    return;
  }
  if (!is_needed(request)) return;
  const auto with = [&](std::uint64_t bytes) {
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(request.units.size(), end + bytes / request.unit_bytes()));
  };
  const std::uint32_t wanted = with(read_ahead_most_bytes);
  for (std::uint32_t at = next_.load(std::memory_order_relaxed); at < wanted;) {
    if (!next_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
    const Residency residency = ask_about(request, request.units[at]);
    if (is_guess(residency)) guess_far(request, with(guessed_at_once_bytes));
    tell(request.units[at], residency);
    at = next_.load(std::memory_order_relaxed);
  }
  for (std::uint32_t at = begin; at < wanted; ++at) await_residency(request.units[at]);
}

// From the end: to look at a page may make the kernel read ahead of it, too. Each look at a page that is not there is a
// read; where many in a row were not, only some are looked at.
void Survey::guess_far(Request& request, std::uint32_t end) {
  std::uint32_t begin = next_.load(std::memory_order_relaxed);
  while (begin < end && !next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) {
  }
  std::uint32_t missing = 0;
  for (std::uint32_t at = end; at > begin; --at) {
    Unit& unit = request.units[at - 1];
    const bool is_skipped = missing >= misses_in_a_row && missing % looked_at_one_in != 0;
    const Residency residency = is_skipped ? Residency::likely_none : ask_about(request, unit);
    missing = residency == Residency::likely_none ? missing + 1 : 0;
    tell(unit, residency);
  }
}

// Some: also if the ranges of a group differ.
Residency Survey::ask_about(const Request& request, const Unit& unit) {
  const std::uint32_t store = request.spans[unit.first].store;
  if (!wants_residency_of(request, *request.stores[store].entry)) return Residency::unknown;
  if (unit.count == 1) {
    const Span& span = request.spans[unit.first];
    const std::uint64_t length = span.transform != 0 ? request.stored_bytes(span) : unit.length;
    return ask(request, {.store = store, .offset = span.offset + unit.begin, .length = length});
  }
  const std::uint32_t stride = std::max(1U, unit.count / residency_samples);
  std::optional<Residency> agreed;
  for (std::uint32_t i = 0; i < unit.count; i += stride) {
    const Span& span = request.spans[unit.first + i];
    if (span.length == 0) continue;
    const Residency residency =
        ask(request, {.store = store, .offset = span.offset, .length = request.stored_bytes(span)});
    if (agreed.value_or(residency) != residency) return Residency::some;
    agreed = residency;
  }
  return agreed.value_or(Residency::unknown);
}

void Survey::tell(Unit& unit, Residency residency) {
  if (residency == Residency::none) is_some_missing_.store(true, std::memory_order_relaxed);
  unit.residency = residency;
  const std::atomic_ref is_asked(unit.is_asked);
  is_asked.store(true, std::memory_order_release);
  is_asked.notify_all();
}

Residency Survey::ask(const Request& request, const Stretch& stretch) {
  engine::PageCache& cache = *request.stores[stretch.store].entry->store().page_cache();
  // Other lanes wait for the answer.
  try {
    const auto resident = cache.resident_bytes(stretch.offset, stretch.length);
    return resident ? compare(*resident, stretch.length) : guess(request, stretch);
  } catch (const std::bad_alloc&) {
    return Residency::likely_none;
  }
}

Survey::Guesses* Survey::guesses() {
  Guesses* known = guesses_.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  std::unique_ptr<Guesses> made(new (std::nothrow) Guesses);
  if (!guesses_.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return known;  // another lane's
  return made.release();
}

Residency Survey::guess(const Request& request, const Stretch& stretch) {
  Guesses* const made = guesses();
  if (made == nullptr) return Residency::likely_none;
  const std::lock_guard lock(made->mutex);
  StoreEntry& entry = *request.stores[stretch.store].entry;
  if (const auto guess = entry.guess_residency(stretch.offset, stretch.length)) {
    if (!guess->missing) return Residency::likely_all;
    const std::uint64_t page = request.environment().machine.page_bytes;
    made->brought.push_back({.store = stretch.store, .offset = *guess->missing / page * page, .length = page});
    return Residency::likely_none;
  }
  if (made->timed_entry != &entry) {
    made->timed = entry.sample_residency(stretch.offset, stretch.length);
    made->timed_entry = &entry;
  }
  return made->timed;
}

// A single unit is ahead of nothing.
bool Survey::may_have_leftovers(const Request& request) const {
  const bool has_guessed = guesses_.load(std::memory_order_relaxed) != nullptr;
  return request.cache == Cache::automatic && (has_guessed || request.units.size() > 1);
}

void Survey::add_leftovers(const Request& request, std::vector<Stretch>& leftovers) const {
  if (!may_have_leftovers(request)) return;
  const auto stays = [&](const Stretch& one) { return request.stores[one.store].stays_cached; };
  if (const Guesses* const made = guesses_.load(std::memory_order_acquire)) {
    std::ranges::remove_copy_if(made->brought, std::back_inserter(leftovers), stays);
  }
  if (!is_some_missing_.load(std::memory_order_relaxed)) return;
  Stretch cached;  // the last unit that was
  for (const Unit& unit : request.units) {
    if (unit.count != 1) continue;
    const Span& span = request.spans[unit.first];
    const Stretch here{.store = span.store, .offset = span.offset + unit.begin, .length = unit.length};
    if (unit.residency == Residency::all) cached = here;
    const bool is_ahead = cached.length != 0 && cached.store == here.store && here.offset > cached.offset &&
                          here.offset - cached.offset <= cached.length + read_ahead_most_bytes;
    // Only what was certainly not cached before may be dropped: the rest is somebody's.
    if (unit.residency == Residency::none && is_ahead && !stays(here)) leftovers.push_back(here);
  }
}

}  // namespace penstock::core
