// What the driver's own functions, as the library finds them by name, have in common.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver.h"

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

// Every function of the library's table, as it is declared there: one that is defined otherwise does not compile, and
// one that is missing is not found.
#define FAKE_CUDA_DECLARE(member, symbol, arguments) FAKE_CUDA_EXPORT penstock::cuda::CuResult symbol arguments;
namespace penstock::cuda {
PENSTOCK_CUDA_REQUIRED(FAKE_CUDA_DECLARE)
PENSTOCK_CUDA_OPTIONAL(FAKE_CUDA_DECLARE)
PENSTOCK_CUDA_CAPTURES(FAKE_CUDA_DECLARE)
}  // namespace penstock::cuda
#undef FAKE_CUDA_DECLARE

namespace fake_cuda {

// The stack of current contexts, top last.
inline thread_local std::vector<CuContext> contexts;

inline Device* current_device() {
  return contexts.empty() ? nullptr : driver().device_of(contexts.back());
}

inline bool is_foreign_process() {
  const int owner = driver().owner;
  return owner != 0 && owner != ::getpid();
}

// What every call begins with: counting, injected delays and failures, and the states in which nothing works or not
// this.
template <typename Body>
CuResult before_init(const char* function, Body body) {
  if (is_foreign_process()) return cu_not_initialized;
  const Inside inside;
  Driver& d = driver();
  Lock lock(d.mutex);
  ++d.calls[function];
  if (const auto* const delay = Driver::find(d.call_delays, function)) {
    const auto taken = *delay;
    lock.unlock();
    std::this_thread::sleep_for(taken);
    lock.lock();
  }
  if (Injection* const injection = Driver::find(d.injections, function)) {
    if (injection->calls_left > 0) --injection->calls_left;
    if (injection->calls_left == 0) {
      const CuResult result = injection->result;
      if (!injection->always) d.injections.erase(function);
      return result;
    }
  }
  return d.spoils_captures(function) ? cu_stream_capture_unsupported : body(d, lock);
}

template <typename Body>
CuResult call(const char* function, Body body) {
  return before_init(
      function, [&](Driver& d, Lock& lock) -> CuResult { return d.owner == 0 ? cu_not_initialized : body(d, lock); });
}

// For calls about one device, by its number.
template <typename Body>
CuResult call_of_device(const char* function, CuDevice ordinal, Body body) {
  return call(function, [&](Driver& d, Lock& lock) -> CuResult {
    Device* const device = d.device(ordinal);
    return device == nullptr ? cu_invalid_device : body(d, lock, *device);
  });
}

// For calls that need a current context.
template <typename Body>
CuResult call_in_context(const char* function, Body body) {
  return call(function, [&](Driver& d, Lock& lock) -> CuResult {
    Device* const device = current_device();
    if (device == nullptr) return cu_invalid_context;
    return device->error != cu_success ? device->error : body(d, lock, *device);
  });
}

// For calls that a stream's handle is enough for; the default streams are those of the current context.
template <typename Body>
CuResult call_of_stream(const char* function, CuStream handle, Body body) {
  return call(function, [&](Driver& d, Lock& lock) -> CuResult {
    Device* const device = current_device();
    const auto stream = d.stream_of(handle, device);
    if (stream == nullptr) {
      return device == nullptr && reinterpret_cast<std::uintptr_t>(handle) <= 2 ? cu_invalid_context
                                                                                : cu_invalid_handle;
    }
    return stream->device->error != cu_success ? stream->device->error : body(d, lock, stream);
  });
}

// For calls that give a stream work: those need a current context as well.
template <typename Body>
CuResult call_on_stream(const char* function, CuStream handle, Body body) {
  return call_of_stream(function, handle,
                        [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& stream) -> CuResult {
                          return current_device() == nullptr ? cu_invalid_context : body(d, lock, stream);
                        });
}

inline std::unique_ptr<Operation> operation_on(const std::shared_ptr<Stream>& stream) {
  auto operation = std::make_unique<Operation>();
  operation->stream = stream;
  return operation;
}

}  // namespace fake_cuda
