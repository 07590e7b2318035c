// RelaxedCaptureMode: within its scope, this thread's CUDA calls don't disturb graphs that are being captured.
//
// A capture in CUDA's global mode, which torch.cuda.graph begins, fails if any thread of the process makes a call that
// CUDA considers unsafe: allocating or freeing memory, querying an event. The relaxed mode allows such calls. Penstock
// makes all its calls in it, on its own threads and on the caller's. Use this for CUDA calls of your own beside a
// capture on another thread, for example to allocate the memory to load into.
//
// Does nothing if no CUDA driver is loaded. Thread safety: a scope belongs to its thread; scopes may be nested.
// Lifetime: at its end the thread has its old mode again.
#pragma once

#include "penstock/export.h"

namespace penstock {

class PENSTOCK_EXPORT RelaxedCaptureMode {
 public:
  RelaxedCaptureMode();
  ~RelaxedCaptureMode();
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  int mode_before_ = 0;
  bool has_exchanged_ = false;  // else a scope around this one has, or there is no driver
};

}  // namespace penstock
