// Models as Python has them: what is in their files, loads into memory that Python owns, and saving.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

void define_models(nanobind::module_& module);

}  // namespace penstock::python
