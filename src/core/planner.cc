#include "core/planner.h"

#include <array>

namespace penstock::core {

using engine::Path;

namespace {

std::string known_names(std::span<const EngineFacts> engines) {
  std::string names;
  for (const auto& engine : engines) {
    if (!names.empty()) names += ", ";
    names += engine.name;
  }
  return names;
}

Result<EnginePlan> plan_wanted(std::span<const EngineFacts> engines, std::string_view wanted) {
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const auto& engine = engines[i];
    if (engine.name != wanted) continue;
    if (!engine.available) {
      return Error{Code::engine_unavailable, 0,
                   "engine " + std::string(wanted) + " does not work here: " + std::string(engine.unavailable_because),
                   "leave the engine unset to use the next best one"};
    }
    if (!engine.serves_scheme) {
      return Error{Code::engine_unavailable, 0,
                   "engine " + std::string(wanted) + " does not support this kind of store", "leave the engine unset"};
    }
    return EnginePlan{i, std::string(wanted) + ": asked for"};
  }
  return Error{Code::unknown_engine, 0, "there is no engine named " + std::string(wanted),
               "engines: " + known_names(engines)};
}

std::string choice_reason(const EngineFacts& engine, std::optional<Locality> locality) {
  std::string reason(engine.name);
  if (locality && is_remote(*locality)) return reason + ": a network or user-space mount, read by many threads";
  if (locality == Locality::memory) return reason + ": a file system in memory, copied by plain threads";
  if (engine.sleeps_in_kernel) return reason + ": deep queues without a thread for each operation";
  return reason + ": a thread for each operation in flight";
}

}  // namespace

Result<EnginePlan> plan_engine(std::span<const EngineFacts> engines, std::string_view wanted,
                               std::optional<Locality> locality) {
  if (!wanted.empty()) return plan_wanted(engines, wanted);
  // Reads of such stores run inside the kernel from end to end; a ring would hand them to the kernel's few workers.
  const bool wants_threads = locality && (is_remote(*locality) || locality == Locality::memory);
  std::optional<std::size_t> fallback;
  std::string passed_over;
  for (std::size_t i = 0; i < engines.size(); ++i) {
    const auto& engine = engines[i];
    if (!engine.serves_scheme || engine.only_device) continue;
    if (!engine.available) {
      passed_over += "; " + std::string(engine.name) + " not used: " + std::string(engine.unavailable_because);
      continue;
    }
    if (wants_threads && engine.sleeps_in_kernel) {
      if (!fallback) fallback = i;
      continue;
    }
    return EnginePlan{i, choice_reason(engine, locality) + passed_over};
  }
  if (fallback) return EnginePlan{*fallback, choice_reason(engines[*fallback], std::nullopt) + passed_over};
  return Error{Code::engine_unavailable, 0, "no working engine supports this store" + passed_over,
               "run `penstock engines` to see what each one needs"};
}

RouteSet route_set(std::span<const Route> routes) {
  if (routes.empty()) return ~(route_bit(Route::cufile_compat) | route_bit(Route::cufile_unknown));
  RouteSet set = 0;
  for (const Route route : routes) {
    set |= route_bit(route);
    const bool has_staged_form = route == Route::cached || route == Route::direct || route == Route::buffered;
    if (has_staged_form) set |= route_bit(staged(route));
  }
  return set;
}

std::string_view reason_text(Reason reason) {
  static constexpr std::array<std::string_view, reason_count> texts = {
      "the file system is in memory",
      "already in the page cache",
      "not in the page cache, so read past it, leaving nothing behind: the file does not fit there",
      "cache=keep: through the page cache",
      "cache=bypass: past the page cache",
      "the store can't be reached past the page cache",
      "a network or user-space mount, read through the page cache",
      "a guess from a few pages: the kernel does not report what is cached of another user's file",
      "written straight to the device",
      "ends that don't fill a whole block",
      "the kernel refused direct transfers on this store",
      "a better route is not allowed",
      "straight between the disk and the GPU",
      "no page cache in between",
      "through host memory, in cuFile's compatibility mode: not direct",
      "by cuFile, which does not report whether it went straight or through host memory",
      "copied through staging memory: the engine can't reach this memory itself",
      "made by a function",
      "not in the page cache, so read through it: the file fits, and stays there",
      "read a second time, so through the page cache, where it stays",
      "past the page cache, to compare the speed",
      "not in the page cache, so read past it: this disk is much faster so",
      "written through the page cache: the file fits, and stays there",
      "written past the page cache: the file does not fit there",
      "written past the page cache: this disk is much faster so",
  };
  return texts[static_cast<std::size_t>(reason)];
}

Reason reason_after(Reason planned, Route route) {
  if (planned != Reason::straight) return planned;
  if (route == Route::cufile_compat) return Reason::cufile_compat;
  return route == Route::cufile_unknown ? Reason::cufile_unknown : planned;
}

namespace {

WindowPlan preferred_write(const WindowFacts& facts) {
  if (!facts.direct)
    return {Path::buffered, facts.locality == Locality::memory ? Reason::in_memory : Reason::no_direct};
  if (!facts.page_cache) return {Path::direct, Reason::write_through};
  if (facts.cache == Cache::keep) return {Path::buffered, Reason::keep_asked};
  if (facts.cache == Cache::bypass) return {Path::direct, Reason::bypass_asked};
  switch (facts.stays) {
    case Stays::file:
      return {Path::buffered, Reason::write_fits};
    case Stays::later:
      return {Path::direct, Reason::tried_past, false, true};
    case Stays::too_slow:
      return {Path::direct, Reason::write_faster_past};
    case Stays::no:
    case Stays::again:
      break;
  }
  return {Path::direct, facts.kind == StoreKind::file ? Reason::write_past : Reason::write_through};
}

WindowPlan preferred_read(const WindowFacts& facts) {
  if (!facts.page_cache) return {Path::direct, Reason::no_page_cache};
  if (facts.locality == Locality::memory) return {Path::cached, Reason::in_memory};
  if (facts.cache == Cache::bypass && facts.direct) return {Path::direct, Reason::bypass_asked};
  if (facts.residency == Residency::all) return {Path::cached, Reason::in_page_cache};
  const bool guess = facts.residency == Residency::likely_all || facts.residency == Residency::likely_none;
  if (facts.residency == Residency::likely_all) return {Path::cached, Reason::residency_unknown};
  if (facts.cache == Cache::keep) return {Path::buffered, Reason::keep_asked};
  if (facts.direct) {
    if (facts.stays == Stays::file) return {Path::buffered, Reason::file_fits};
    if (facts.stays == Stays::again) return {Path::buffered, Reason::read_again};
    if (facts.stays == Stays::later) return {Path::direct, Reason::tried_past, false, true};
    if (facts.stays == Stays::too_slow) return {Path::direct, Reason::faster_past};
    return {Path::direct, guess ? Reason::residency_unknown : Reason::not_in_page_cache};
  }
  // Only what was certainly not cached before may be dropped: the rest is somebody's.
  const bool drop = facts.residency == Residency::none && facts.stays == Stays::no;
  return {Path::buffered, is_remote(facts.locality) ? Reason::remote : Reason::no_direct, drop};
}

}  // namespace

std::optional<WindowPlan> plan_window(const WindowFacts& facts) {
  const auto is_allowed = [&](Path path) {
    const Route route = route_of(path);
    return (facts.allowed & route_bit(facts.out_of_reach ? staged(route) : route)) != 0;
  };
  const WindowPlan plan = facts.direction == Direction::write ? preferred_write(facts) : preferred_read(facts);
  const bool reachable = facts.direct || facts.page_cache;
  // What is in memory already comes faster from there than from the disk.
  const bool in_memory = reachable && plan.path == Path::cached && is_allowed(Path::cached);
  const bool keeps = facts.cache == Cache::keep && facts.page_cache;
  if (facts.device_route && !keeps && (facts.allowed & route_bit(*facts.device_route)) != 0 && !in_memory) {
    return WindowPlan{Path::device, Reason::straight};
  }
  if (!reachable) return std::nullopt;
  if (is_allowed(plan.path)) return plan;
  if (facts.direct && is_allowed(Path::direct)) return WindowPlan{Path::direct, Reason::not_allowed};
  if (facts.page_cache && is_allowed(Path::buffered)) return WindowPlan{Path::buffered, Reason::not_allowed};
  return std::nullopt;
}

}  // namespace penstock::core
