// EngineInfo: what an engine is and whether it works on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
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

// Whether the engine of that name works on this machine, among those of Context::engines(). False for an unknown name.
inline bool is_available(std::span<const EngineInfo> engines, std::string_view name) {
  for (const EngineInfo& engine : engines) {
    if (engine.name == name) return engine.available;
  }
  return false;
}

// Whether an engine moves bytes between storage and GPU memory without a copy in host memory: GPUDirect Storage works.
inline bool is_gpu_direct_available(std::span<const EngineInfo> engines) {
  for (const EngineInfo& engine : engines) {
    if (engine.available && (engine.device_route == Route::gds || engine.device_route == Route::p2pdma)) return true;
  }
  return false;
}

}  // namespace penstock
