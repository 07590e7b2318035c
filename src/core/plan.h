// The Plan of a store: what the planner would choose for bytes in each state, with all that goes into it.
#pragma once

#include "core/environment.h"
#include "core/store_entry.h"
#include "penstock/plan.h"

namespace penstock::core {

// Code::no_device for a GPU that is not there.
Result<Plan> plan_of(const Environment& environment, StoreEntry& entry, Direction direction, Domain domain);

}  // namespace penstock::core
