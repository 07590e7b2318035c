// The table of engines, for `penstock engines` and `penstock doctor`.
#pragma once

#include <vector>

#include "output.h"
#include "penstock/engine_info.h"

namespace penstock::cli {

Json engines_json(const std::vector<EngineInfo>& engines);
Json conditions_json(const std::vector<Condition>& conditions);
void print_condition(const Output& output, const Condition& condition);
void print_engines(const Output& output, const std::vector<EngineInfo>& engines);

}  // namespace penstock::cli
