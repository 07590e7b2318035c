// EngineInfo: what an engine is and whether it works on this machine.
#pragma once

#include <string>
#include <vector>

namespace penstock {

struct EngineInfo {
  std::string name;
  std::string summary;
  std::vector<std::string> schemes;
  bool available = false;
  std::string reason;  // why not, or a restriction worth knowing
  std::string remedy;  // what would help
};

}  // namespace penstock
