// Kinds of records as Python has them.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

void define_kinds(nanobind::module_& module);

}  // namespace penstock::python
