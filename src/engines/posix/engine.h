// The posix engine: positional reads and writes on a bounded number of threads. Works on every Linux machine.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace penstock::posix {

std::unique_ptr<engine::Engine> make_engine();

}  // namespace penstock::posix
