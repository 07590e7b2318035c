// Tiers as Python has them.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

void define_tiers(nanobind::module_& module);

}  // namespace penstock::python
