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

NB_MODULE(_core_of_main, module) {
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

// Classes and exit handlers are of one interpreter. What nanobind does before the above would replace those of the main
// one, so that comes first.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return PyInit__core_of_main();
  PyErr_SetString(PyExc_ImportError,
                  "Penstock works in the main interpreter only: import it there, or in another process");
  return nullptr;
}
