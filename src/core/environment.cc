#include "core/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/lane_set.h"
#include "core/long_slots.h"

namespace penstock::core {

namespace {

// An engine that reaches GPUs by a route that isn't allowed is left alone.
bool is_used(const engine::Engine& engine, const engine::Probe& probe, RouteSet allowed) {
  const auto& route = probe.device_route;
  const bool only_device = engine.description().host == engine::HostReach::none;
  return probe.available && (!only_device || (route && (allowed & route_bit(*route)) != 0));
}

// Of the budget: what lanes take for staging, sooner or later.
std::uint64_t lanes_bytes(const Options& options) {
  const std::uint64_t slots = options.lanes * options.staging_slots_per_lane * options.staging_slot_bytes;
  return std::min(options.pinned_budget_bytes,
                  slots + LongSlots::of(options).staging_bytes() + LaneSet::callers_staging_bytes(options.lanes));
}

// Of the page cache, for files that stay there; 0: half of the memory that is available.
std::uint64_t cache_limit_bytes() {
  const char* text = ::secure_getenv("PENSTOCK_CACHE_LIMIT");
  std::uint64_t bytes = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), bytes);
  return bytes;
}

std::vector<engine::Engine*> pointers(const engine::Table& table) {
  std::vector<engine::Engine*> engines;
  for (const auto& engine : table) engines.push_back(engine.get());
  return engines;
}

std::vector<std::string> names(const engine::Table& table) {
  std::vector<std::string> result;
  for (const auto& engine : table) result.emplace_back(engine->description().name);
  return result;
}

}  // namespace

Environment::Environment(std::shared_ptr<const engine::Table> table, const Options& chosen, const Machine& detected,
                         std::shared_ptr<memory::Given> staging)
    : engines(std::move(table)),
      machine(detected),
      options(chosen.resolved(detected)),
      probes(*engines),
      calls(std::make_shared<Calls>(engines, options.deadlines)),
      pinned(std::make_shared<memory::Budget>(options.pinned_budget_bytes)),
      on_use(std::make_shared<memory::Budget>(options.pinned_budget_bytes - lanes_bytes(options))),
      given(std::move(staging)),
      memory(pointers(*engines),
             [this](std::size_t engine) {
               return is_used(*(*engines)[engine], probes[engine], route_set(options.allowed_routes));
             },
             {pinned, on_use}),
      device_memory(options.device_budget_bytes),
      statistics(names(*engines)),
      traces(options.trace_events),
      flows({.most_bytes = options.bytes_in_flight,
             .chunk_bytes = options.storage_chunk_bytes,
             .lanes = options.lanes,
             .operations = options.operations_in_flight,
             .queue_time_most = duration_from_seconds(options.deadlines.cancel_grace_seconds) / 2}),
      caching(cache_limit_bytes()) {}

}  // namespace penstock::core
