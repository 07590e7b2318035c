// Which tiers there are to be: what a file, the environment, or nobody says.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "penstock/tiers.h"
#include "services/tiers/names.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

Error wrong(const std::string& what) {
  return {Code::invalid_argument, 0, "the configuration of tiers: " + what, "docs/tiers.md has an example"};
}

// A field, if it is there and of the right kind.
Status take_number(const Json& object, const char* key, double& value) {
  if (!object.contains(key)) return {};
  if (!object[key].is_number()) return wrong(std::string(key) + " is not a number");
  value = object[key].get<double>();
  return {};
}

Result<NewTier> tier_from(const Json& object) {
  if (!object.is_object()) return wrong("a tier is not an object");
  NewTier tier;
  double capacity = 0, heat = -1;
  for (const auto& [key, value] : object.items()) {
    if (key == "name" && value.is_string()) {
      tier.name = value.get<std::string>();
    } else if (key == "path" && value.is_string()) {
      tier.path = value.get<std::string>();
    } else if (key == "read_only" && value.is_boolean()) {
      tier.read_only = value.get<bool>();
    } else if (key != "capacity_bytes" && key != "low_water" && key != "high_water" && key != "from_heat") {
      return wrong("a tier has an unknown or unfit \"" + key + "\"");
    }
  }
  if (tier.name.empty() || tier.path.empty()) return wrong("a tier has no name or no path");
  const std::pair<const char*, double*> numbers[] = {{"capacity_bytes", &capacity},
                                                     {"low_water", &tier.low_water},
                                                     {"high_water", &tier.high_water},
                                                     {"from_heat", &heat}};
  for (const auto& [key, value] : numbers) {
    if (Status taken = take_number(object, key, *value); !taken) return std::move(taken).error();
  }
  if (!(capacity >= 0 && capacity < 9e18)) return wrong("capacity_bytes is out of range");
  tier.capacity_bytes = static_cast<std::uint64_t>(capacity);
  if (object.contains("from_heat")) tier.from_heat = heat;
  return tier;
}

}  // namespace

Result<Tiers::Configuration> Tiers::parse_configuration(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) return wrong("it is not a JSON object");
  Configuration configuration;
  for (const auto& [key, value] : json.items()) {
    if (key != "tiers" && key != "policy") return wrong("it has an unknown \"" + key + "\"");
  }
  if (!json.contains("tiers") || !json["tiers"].is_array() || json["tiers"].empty()) return wrong("it has no tiers");
  for (const Json& object : json["tiers"]) {
    auto tier = tier_from(object);
    if (!tier) return std::move(tier).error();
    configuration.tiers.push_back(std::move(*tier));
  }
  if (!json.contains("policy")) return configuration;
  const Json& policy = json["policy"];
  if (!policy.is_object()) return wrong("its policy is not an object");
  for (const auto& [key, value] : policy.items()) {
    if (key != "half_life_seconds" && key != "cooling" && key != "least_stay_seconds") {
      return wrong("its policy has an unknown \"" + key + "\"");
    }
  }
  TierPolicy& set = configuration.policy;
  const std::pair<const char*, double*> numbers[] = {{"half_life_seconds", &set.half_life_seconds},
                                                     {"cooling", &set.cooling},
                                                     {"least_stay_seconds", &set.least_stay_seconds}};
  for (const auto& [key, value] : numbers) {
    if (Status taken = take_number(policy, key, *value); !taken) return std::move(taken).error();
  }
  return configuration;
}

Result<std::vector<NewTier>> Tiers::usual_tiers() {
  const char* paths = ::secure_getenv("PENSTOCK_TIER_PATHS");
  if (paths == nullptr || *paths == '\0') {
    return std::vector<NewTier>{
        {.name = "nvme", .path = "/nvme"}, {.name = "ssd", .path = "/ssd"}, {.name = "hdd", .path = "/hdd"}};
  }
  std::vector<NewTier> tiers;
  for (std::string_view rest = paths; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const std::size_t equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == one.size()) {
      return Error{Code::invalid_argument, 0, "PENSTOCK_TIER_PATHS: \"" + tiers::shown(one) + "\" is not NAME=PATH",
                   "write it as fast=/mnt/a,slow=/mnt/b"};
    }
    tiers.push_back({.name = std::string(one.substr(0, equals)), .path = std::string(one.substr(equals + 1))});
  }
  return tiers;
}

}  // namespace penstock
