// The uring engine: deep queues in the kernel through io_uring, with registered files and buffers.
//
// Where the kernel or a container refuses io_uring, probe() says so, why, and what would help.
#pragma once

#include <memory>

#include "engine/engine.h"

namespace penstock::uring {

struct Settings {
  int simulated_refusal = 0;  // for tests: the error number with which the kernel is to refuse every ring
};

std::unique_ptr<engine::Engine> make_engine(const Settings& settings = {});

}  // namespace penstock::uring
