// Memory that abandoned operations of a Context may still touch. Needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "penstock/context.h"

namespace penstock::python {

// It stays until a call below finds that they have come home, and for good where the Context is gone by then.
void keep_abandoned(std::weak_ptr<Context> context, nanobind::object memory);
void let_go_of_what_came_home(const std::shared_ptr<Context>& context);

}  // namespace penstock::python
