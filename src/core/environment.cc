#include "core/environment.h"

namespace penstock::core {

namespace {

std::vector<engine::Probe> probe_all(const engine::Table& table) {
  std::vector<engine::Probe> probes;
  for (const auto& engine : table) probes.push_back(engine->probe());
  return probes;
}

std::vector<engine::Engine*> working(const engine::Table& table, const std::vector<engine::Probe>& probes) {
  std::vector<engine::Engine*> engines;
  for (std::size_t i = 0; i < table.size(); ++i) engines.push_back(probes[i].available ? table[i].get() : nullptr);
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
      quarantine(std::make_shared<memory::Quarantine>()),
      memory(working(*engines, probes)),
      statistics(names(*engines)) {}

}  // namespace penstock::core
