#include "penstock/capture_mode.h"

#include <dlfcn.h>

#include <atomic>

#include "cuda/api.h"

namespace penstock {

namespace {

// So that scopes within scopes cost no call.
thread_local bool is_relaxed = false;

using Exchange = decltype(cuda::CaptureApi::exchange_mode);

// Of the driver that somebody has loaded: perhaps torch, before the Driver was needed. Null where nobody has.
Exchange find_exchange() {
  static std::atomic<Exchange> found{nullptr};
  Exchange exchange = found.load(std::memory_order_relaxed);
  if (exchange != nullptr) return exchange;
  void* const library = ::dlopen(cuda::library_name, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  exchange = reinterpret_cast<Exchange>(::dlsym(library, "cuThreadExchangeStreamCaptureMode"));
  found.store(exchange, std::memory_order_relaxed);
  return exchange;
}

}  // namespace

RelaxedCaptureMode::RelaxedCaptureMode() {
  if (is_relaxed) return;
  const Exchange exchange = find_exchange();
  int mode = cuda::cu_capture_mode_relaxed;
  // Before cuInit it fails, and there are no captures then.
  if (exchange == nullptr || exchange(&mode) != cuda::cu_success) return;
  mode_before_ = mode;
  has_exchanged_ = is_relaxed = true;
}

RelaxedCaptureMode::~RelaxedCaptureMode() {
  if (!has_exchanged_) return;
  find_exchange()(&mode_before_);
  is_relaxed = false;
}

}  // namespace penstock
