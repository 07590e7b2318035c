// Memory of Python objects, as regions.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

void define_memory(nanobind::module_& module);

}  // namespace penstock::python
