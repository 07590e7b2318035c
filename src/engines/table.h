// The table of engines: the one place that names them all, in order of preference.
#pragma once

#include "engine/engine.h"

namespace penstock::engines {

engine::Table default_table();

}  // namespace penstock::engines
