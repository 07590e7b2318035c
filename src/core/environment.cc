#include "core/environment.h"

namespace penstock::core {

namespace {

std::vector<engine::Probe> probe_all(const engine::Table& table) {
  std::vector<engine::Probe> probes;
  for (const auto& engine : table) probes.push_back(engine->probe());
  return probes;
}

// Those that memory is attached to. An engine that reaches GPUs by a route that isn't allowed is left alone.
std::vector<engine::Engine*> in_use(const engine::Table& table, const std::vector<engine::Probe>& probes,
                                    RouteSet allowed) {
  std::vector<engine::Engine*> engines;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto& route = probes[i].device_route;
    const bool wanted = !table[i]->description().reaches_device || (route && (allowed & route_bit(*route)) != 0);
    engines.push_back(probes[i].available && wanted ? table[i].get() : nullptr);
  }
  return engines;
}

std::vector<std::string> names(const engine::Table& table) {
  std::vector<std::string> result;
  for (const auto& engine : table) result.emplace_back(engine->description().name);
  return result;
}

}  // namespace

Environment::Environment(std::shared_ptr<const engine::Table> table, const Options& chosen, const Machine& detected)
    : engines(std::move(table)),
      machine(detected),
      options(chosen.resolved(detected)),
      probes(probe_all(*engines)),
      pinned(std::make_shared<memory::Budget>(options.pinned_budget_bytes)),
      memory(in_use(*engines, probes, route_set(options.allowed_routes))),
      device_memory(options.device_budget_bytes),
      statistics(names(*engines)),
      traces(options.trace_events) {}

}  // namespace penstock::core
