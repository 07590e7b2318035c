// Working without the GIL, also while the interpreter shuts down.
//
// A thread that asks for the GIL then is ended by the interpreter, inside whatever C++ it is in, which ends the
// process. So once `shut_down` was called, threads other than its caller sleep instead: they are daemons, and nobody
// waits for them. (Exit handlers that were registered before may start threads and wait for them: those may not call.)
#pragma once

#include <nanobind/nanobind.h>

namespace penstock::python {

// To be called by Python's atexit.
void shut_down();
// Returns, unless the interpreter shuts down and this is not its last thread.
void sleep_if_shut_down();

// Gives the GIL back for the life of the object.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    sleep_if_shut_down();
    PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_;
};

// The result of work that needs no Python.
template <typename Work>
auto without_gil(Work work) {
  const WithoutGil released;
  return work();
}

}  // namespace penstock::python
