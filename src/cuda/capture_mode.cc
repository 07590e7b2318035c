#include "penstock/capture_mode.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstddef>

#include "cuda/api.h"

namespace penstock {

namespace {

// So that scopes within scopes cost no call.
thread_local bool is_relaxed = false;

using Exchange = decltype(cuda::CaptureApi::exchange_mode);

// How many libraries this process has loaded so far.
unsigned long long count_loads() {
  unsigned long long loads = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* count) {
        *static_cast<unsigned long long*>(count) = info->dlpi_adds;
        return 1;  // each one says so
      },
      &loads);
  return loads;
}

// Of the driver, if the program has loaded it: perhaps torch, before the Driver was needed. Null if not.
Exchange find_exchange() {
  static std::atomic<Exchange> found{nullptr};
  static std::atomic<unsigned long long> loads_without{0};  // when it was looked for last, in vain
  Exchange exchange = found.load(std::memory_order_relaxed);
  if (exchange != nullptr) return exchange;
  // The loader looks through all folders for a library that is not there. It need not, if nothing was loaded since.
  const unsigned long long loads = count_loads();
  if (loads == loads_without.load(std::memory_order_relaxed)) return nullptr;
  void* const library = ::dlopen(cuda::library_name, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    loads_without.store(loads, std::memory_order_relaxed);
    return nullptr;
  }
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
