// The backend inside this process: workers and engines of its own.
#pragma once

#include <memory>

#include "client/backend.h"
#include "engine/engine.h"

namespace penstock::local {

// Checks the options. Starts no thread; engines are probed on first use.
Result<std::shared_ptr<client::Backend>> make_backend(engine::Table table, const Options& options);

}  // namespace penstock::local
