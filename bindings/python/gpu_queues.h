// Sets of queues for kernels, and arrays over them, as Python has them.
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

void define_gpu_queues(nanobind::module_& module);

}  // namespace penstock::python
