// The driver's own functions: devices, contexts and errors.
#include <algorithm>
#include <cstring>

#include "call.h"

using namespace fake_cuda;

namespace {

const char* name_of(CuResult result) {
  switch (result) {
    case cu_success:
      return "CUDA_SUCCESS";
    case cu_invalid_value:
      return "CUDA_ERROR_INVALID_VALUE";
    case cu_out_of_memory:
      return "CUDA_ERROR_OUT_OF_MEMORY";
    case cu_not_initialized:
      return "CUDA_ERROR_NOT_INITIALIZED";
    case cu_deinitialized:
      return "CUDA_ERROR_DEINITIALIZED";
    case cu_no_device:
      return "CUDA_ERROR_NO_DEVICE";
    case cu_invalid_device:
      return "CUDA_ERROR_INVALID_DEVICE";
    case cu_invalid_context:
      return "CUDA_ERROR_INVALID_CONTEXT";
    case cu_ecc_uncorrectable:
      return "CUDA_ERROR_ECC_UNCORRECTABLE";
    case cu_invalid_handle:
      return "CUDA_ERROR_INVALID_HANDLE";
    case cu_not_found:
      return "CUDA_ERROR_NOT_FOUND";
    case cu_not_ready:
      return "CUDA_ERROR_NOT_READY";
    case cu_illegal_address:
      return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case cu_host_memory_already_registered:
      return "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    case cu_host_memory_not_registered:
      return "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    case cu_launch_failed:
      return "CUDA_ERROR_LAUNCH_FAILED";
    case cu_not_supported:
      return "CUDA_ERROR_NOT_SUPPORTED";
    case cu_system_driver_mismatch:
      return "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH";
    case cu_stream_capture_unsupported:
      return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case cu_stream_capture_invalidated:
      return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case cu_stream_capture_implicit:
      return "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    case cu_captured_event:
      return "CUDA_ERROR_CAPTURED_EVENT";
    case cu_stream_capture_wrong_thread:
      return "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
    case cu_unknown:
      return "CUDA_ERROR_UNKNOWN";
    default:
      return nullptr;
  }
}

CuResult put_name(CuResult error, const char** text) {
  if (text == nullptr) return cu_invalid_value;
  *text = name_of(error);
  return *text == nullptr ? cu_invalid_value : cu_success;
}

}  // namespace

FAKE_CUDA_EXPORT CuResult cuInit(unsigned flags) {
  return before_init(__func__, [&](Driver& d, Lock&) { return flags != 0 ? cu_invalid_value : d.initialize(); });
}

FAKE_CUDA_EXPORT CuResult cuDriverGetVersion(int* version) {
  return before_init(__func__, [&](Driver& d, Lock&) {
    if (version == nullptr) return cu_invalid_value;
    *version = d.version;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuGetErrorName(CuResult error, const char** text) {
  return put_name(error, text);
}

FAKE_CUDA_EXPORT CuResult cuGetErrorString(CuResult error, const char** text) {
  return put_name(error, text);
}

FAKE_CUDA_EXPORT CuResult cuDeviceGetCount(int* count) {
  return call(__func__, [&](Driver& d, Lock&) {
    if (count == nullptr) return cu_invalid_value;
    *count = static_cast<int>(d.devices.size());
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  return call_of_device(__func__, ordinal, [&](Driver&, Lock&, Device& found) {
    if (device == nullptr) return cu_invalid_value;
    *device = found.ordinal;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuDeviceGetName(char* name, int length, CuDevice device) {
  return call_of_device(__func__, device, [&](Driver&, Lock&, Device& found) {
    if (name == nullptr || length <= 0) return cu_invalid_value;
    const std::string text = "Fake GPU " + std::to_string(found.board);
    name[text.copy(name, static_cast<std::size_t>(length) - 1)] = '\0';
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuDeviceTotalMem_v2(std::size_t* bytes, CuDevice device) {
  return call_of_device(__func__, device, [&](Driver& d, Lock&, Device&) {
    if (bytes == nullptr) return cu_invalid_value;
    *bytes = d.device_bytes;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuDeviceGetAttribute(int* value, int attribute, CuDevice device) {
  return call_of_device(__func__, device, [&](Driver&, Lock&, Device& found) {
    const int* const known = Driver::find(found.attributes, attribute);
    if (value == nullptr || known == nullptr) return cu_invalid_value;
    *value = *known;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  return call_of_device(__func__, device, [&](Driver& d, Lock&, Device& found) {
    if (context == nullptr) return cu_invalid_value;
    if (found.error != cu_success) return found.error;
    if (found.references++ == 0) found.context = d.new_handle<CuContext>();
    *context = found.context;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
  return call_of_device(__func__, device, [&](Driver& d, Lock& lock, Device& found) {
    if (found.references == 0) return cu_invalid_context;
    if (found.references == 1 && d.wait(lock, found, d.all_work(found), d.synchronizing_limit) == cu_not_ready) {
      d.breach("the last reference to a context was released while its streams could not end");
      return cu_unknown;
    }
    if (--found.references == 0) d.end_context(lock, found);
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuDevicePrimaryCtxGetState(CuDevice device, unsigned* flags, int* active) {
  return call_of_device(__func__, device, [&](Driver&, Lock&, Device& found) {
    if (flags == nullptr || active == nullptr) return cu_invalid_value;
    *flags = 0;
    *active = found.references > 0 ? 1 : 0;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuCtxPushCurrent_v2(CuContext context) {
  return call(__func__, [&](Driver& d, Lock&) {
    if (d.device_of(context) == nullptr) return cu_invalid_context;
    contexts.push_back(context);
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuCtxPopCurrent_v2(CuContext* context) {
  return call(__func__, [&](Driver&, Lock&) {
    if (contexts.empty()) return cu_invalid_context;
    if (context != nullptr) *context = contexts.back();
    contexts.pop_back();
    return cu_success;
  });
}
