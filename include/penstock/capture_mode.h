// RelaxedCaptureMode: for a scope, CUDA calls of this thread don't disturb graphs that are being captured.
//
// A capture in CUDA's global mode, as torch.cuda.graph begins it, fails if any thread of the process makes a call that
// CUDA takes for unsafe: allocating or freeing memory, asking for an event. In the relaxed mode such calls are allowed.
// Every call of Penstock's is made in it, on threads of its own and on the caller's. This is for calls that a program
// makes itself beside a capture on another thread, to allocate the memory that it loads into, say.
//
// Does nothing where no CUDA driver is loaded. Thread safety: a scope is its thread's own; scopes may be nested.
// Lifetime: the thread has its own mode again at the end.
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
