// penstock._core: the library as Python sees it. The package around it is what users import.
#include <nanobind/nanobind.h>

#include <exception>

#include "context.h"
#include "gil.h"
#include "gpu_queues.h"
#include "kinds.h"
#include "layers.h"
#include "memory.h"
#include "models.h"
#include "packing.h"
#include "rows.h"
#include "tiers.h"

NB_MODULE(_core, module) {
  // The C library ends the process where a thread has no memory for what throws std::bad_alloc in it: so it is made
  // now.
  [[maybe_unused]] volatile int made = std::uncaught_exceptions();  // or the compiler would leave it out
  // A daemon thread that still waits when the process ends is no mistake of the binding.
  nanobind::set_leak_warnings(false);
  module.def("shut_down", &penstock::python::shut_down);
  penstock::python::define_memory(module);
  penstock::python::define_context(module);
  penstock::python::define_models(module);
  penstock::python::define_packing(module);
  penstock::python::define_rows(module);
  penstock::python::define_kinds(module);
  penstock::python::define_layers(module);
  penstock::python::define_gpu_queues(module);
  penstock::python::define_tiers(module);
}
