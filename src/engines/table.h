// The table of engines: the one place that names them all, in order of preference.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace penstock::engines {

engine::Table default_table();
// The engine for files alone, without a table: for the blocks of controllers in software.
std::unique_ptr<engine::Engine> best_for_files();

}  // namespace penstock::engines
