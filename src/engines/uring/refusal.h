// Why a machine refuses io_uring, and what to do about it.
#pragma once

#include <optional>

#include "engine/engine.h"

namespace penstock::uring {

// `disabled`: what the sysctl kernel.io_uring_disabled says, where there is one. A pure function.
engine::Probe explain_refusal(int error, std::optional<int> disabled);
// Of a ring that was set up: with this number io_uring_enter answered. A pure function.
engine::Probe explain_refused_use(int error);

std::optional<int> io_uring_disabled();

}  // namespace penstock::uring
