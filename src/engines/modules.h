// Engines that are loaded at run time (engine/module.h).
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"

namespace penstock::engines {

// What was loaded stays so until the process ends. Code::engine_unavailable for what is no module, or of another build.
Result<std::unique_ptr<engine::Engine>> load_module(const std::string& path);

// Adds them before the last of the table, which works everywhere.
Status add_modules(engine::Table& table, const std::vector<std::string>& paths);

}  // namespace penstock::engines
