// The table of engines, for `penstock engines` and `penstock doctor`.
#pragma once

#include <vector>

#include "output.h"
#include "penstock/engine_info.h"

namespace penstock::cli {

Json engines_json(const std::vector<EngineInfo>& engines);
void print_engines(const Output& output, const std::vector<EngineInfo>& engines);

}  // namespace penstock::cli
