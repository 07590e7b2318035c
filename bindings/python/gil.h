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

// Whether this thread has the GIL. The interpreter's own answer is no part of its stable interface.
bool has_gil();

// Gives the GIL back for the life of the object.
class WithoutGil {
 public:
  WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil();

 private:
  PyThreadState* state_;
};

// Takes the GIL for the life of the object, on any thread.
class WithGil {
 public:
  WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil();

 private:
  PyGILState_STATE state_;
  bool was_given_back_;
};

// The result of work that needs no Python.
template <typename Work>
auto without_gil(Work work) {
  const WithoutGil released;
  return work();
}

}  // namespace penstock::python
