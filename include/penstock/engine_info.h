// EngineInfo: what an engine is and whether it works on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/route.h"

namespace penstock {

// Something that an engine needs, or that would make it faster.
struct Condition {
  enum class State : std::uint8_t { met, missing, unknown };
  std::string name;  // "nvidia-fs kernel module"
  State state = State::unknown;
  std::string detail;  // what was found
  std::string remedy;  // what would help; empty if it is met
};

struct EngineInfo {
  std::string name;
  std::string summary;
  std::vector<std::string> schemes;
  bool available = false;
  std::string reason;                 // why not, or a restriction worth knowing
  std::string remedy;                 // what would help
  std::vector<Condition> conditions;  // in detail, where there is more to say
  bool reaches_device = false;        // moves bytes between a store and GPU memory without staging
  std::optional<Route> device_route;  // the route they would take on this machine
};

}  // namespace penstock
