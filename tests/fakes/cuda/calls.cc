// The driver's own functions, as the library finds them by name.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "driver.h"

using namespace fake_cuda;

namespace {

// The stack of current contexts, top last.
thread_local std::vector<CuContext> contexts;

Device* current_device() {
  return contexts.empty() ? nullptr : driver().device_of(contexts.back());
}

bool is_foreign_process() {
  const int owner = driver().owner;
  return owner != 0 && owner != ::getpid();
}

// What every call begins with: counting, injected failures, and the states in which nothing works.
template <typename Body>
CuResult before_init(const char* function, Body body) {
  if (is_foreign_process()) return cu_not_initialized;
  Driver& d = driver();
  Lock lock(d.mutex);
  ++d.calls[function];
  if (Injection* const injection = Driver::find(d.injections, function)) {
    if (injection->calls_left > 0) --injection->calls_left;
    if (injection->calls_left == 0) {
      const CuResult result = injection->result;
      if (!injection->always) d.injections.erase(function);
      return result;
    }
  }
  return body(d, lock);
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

std::unique_ptr<Operation> operation_on(const std::shared_ptr<Stream>& stream) {
  auto operation = std::make_unique<Operation>();
  operation->stream = stream;
  return operation;
}

CuResult break_device(Driver& d, Device& device, CuResult error) {
  device.error = error;
  d.announce();
  return error;
}

// Host memory that the device can't reach by itself.
bool is_pageable(Driver& d, const Device& device, CuDevicePtr address) {
  const auto range = d.memory_at(address);
  return range == nullptr || (!range->on_device && !range->is_portable && range->device != &device);
}

// Registered memory is read and written when the copy runs. Of pageable memory, the bytes are taken before the call
// returns, or the call returns when they have arrived.
CuResult enqueue_copies(Driver& d, Lock& lock, const std::shared_ptr<Stream>& stream, std::vector<Copy> copies) {
  Device& device = *stream->device;
  auto operation = operation_on(stream);
  bool is_synchronous = false;
  for (Copy& copy : copies) {
    if (is_pageable(d, device, copy.from)) {
      auto* const from = reinterpret_cast<std::byte*>(copy.from);
      if (!is_mapped(from, copy.bytes)) return break_device(d, device, cu_illegal_address);
      copy.staged_from = std::make_shared<std::vector<std::byte>>(from, from + copy.bytes);
    }
    if (is_pageable(d, device, copy.to)) {
      copy.pageable_to = reinterpret_cast<std::byte*>(copy.to);
      if (!is_mapped(copy.pageable_to, copy.bytes)) return break_device(d, device, cu_illegal_address);
      is_synchronous = true;
    }
    const auto to = d.memory_at(copy.to);
    (to != nullptr && to->on_device ? operation->bytes_to_device : operation->bytes_from_device) += copy.bytes;
  }
  operation->run = [copies = std::move(copies), &device](Lock& held) {
    return run_copies(held, device, copies, nullptr);
  };
  const CuResult result = d.enqueue(std::move(operation));
  if (result != cu_success || !is_synchronous) return result;
  return d.wait(lock, device, {{stream, stream->queued}});
}

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

#define FAKE_CUDA_EXPORT extern "C" __attribute__((visibility("default")))

FAKE_CUDA_EXPORT CuResult cuInit(unsigned flags) {
  return before_init(__func__, [&](Driver& d, Lock&) { return flags != 0 ? cu_invalid_value : d.initialize(); });
}

FAKE_CUDA_EXPORT CuResult cuDriverGetVersion(int* version) {
  return before_init(__func__, [&](Driver&, Lock&) {
    if (version == nullptr) return cu_invalid_value;
    *version = 13000;
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

FAKE_CUDA_EXPORT CuResult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call_in_context(__func__, [&](Driver&, Lock&, Device&) {
    if (least != nullptr) *least = least_priority;
    if (greatest != nullptr) *greatest = greatest_priority;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device& device) {
    if (free_bytes == nullptr || total_bytes == nullptr) return cu_invalid_value;
    *free_bytes = d.device_bytes - std::min<std::size_t>(d.device_bytes, device.used_bytes);
    *total_bytes = d.device_bytes;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuMemAlloc_v2(CuDevicePtr* address, std::size_t bytes) {
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    if (address == nullptr) return cu_invalid_value;
    const CuResult waited = d.synchronizing_call(lock, device, "cuMemAlloc_v2");
    return waited != cu_success ? waited : d.allocate(device, bytes, *address);
  });
}

FAKE_CUDA_EXPORT CuResult cuMemFree_v2(CuDevicePtr address) {
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    const CuResult waited = d.synchronizing_call(lock, device, "cuMemFree_v2");
    return waited != cu_success ? waited : d.free(lock, address);
  });
}

FAKE_CUDA_EXPORT CuResult cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    const CuResult waited = d.synchronizing_call(lock, device, "cuMemHostRegister_v2");
    return waited != cu_success ? waited : d.register_host(device, address, bytes, flags);
  });
}

FAKE_CUDA_EXPORT CuResult cuMemHostUnregister(void* address) {
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    const CuResult waited = d.synchronizing_call(lock, device, "cuMemHostUnregister");
    return waited != cu_success ? waited : d.unregister_host(lock, address);
  });
}

FAKE_CUDA_EXPORT CuResult cuMemHostGetDevicePointer_v2(CuDevicePtr* device, void* host, unsigned flags) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device&) {
    const auto range = d.memory_at(reinterpret_cast<CuDevicePtr>(host));
    if (device == nullptr || flags != 0 || range == nullptr || range->on_device) return cu_invalid_value;
    *device = reinterpret_cast<CuDevicePtr>(host);
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuPointerGetAttribute(void* value, int attribute, CuDevicePtr address) {
  return call(__func__, [&](Driver& d, Lock&) {
    const auto range = d.memory_at(address);
    if (value == nullptr || range == nullptr) return cu_invalid_value;
    if (range->device->error != cu_success) return range->device->error;
    const auto put = [&](auto answer) {
      std::memcpy(value, &answer, sizeof answer);
      return cu_success;
    };
    switch (attribute) {
      case cu_pointer_memory_type:
        return put(range->on_device ? cu_memory_type_device : cu_memory_type_host);
      case cu_pointer_buffer_id:
        return put(range->buffer_id);
      case cu_pointer_is_managed:
        return put(false);
      case cu_pointer_device_ordinal:
        return put(range->device->ordinal);
      case cu_pointer_range_start:
        return put(range->start);
      case cu_pointer_range_size:
        return put(range->bytes);
      default:
        return cu_invalid_value;
    }
  });
}

FAKE_CUDA_EXPORT CuResult cuMemcpyHtoDAsync_v2(CuDevicePtr to, const void* from, std::size_t bytes, CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (bytes == 0) return cu_success;
    if (from == nullptr || to == 0) return cu_invalid_value;
    const auto range = d.memory_at(to);
    if (range == nullptr || !range->on_device) return break_device(d, *found->device, cu_illegal_address);
    return enqueue_copies(d, lock, found, {{.to = to, .from = reinterpret_cast<CuDevicePtr>(from), .bytes = bytes}});
  });
}

FAKE_CUDA_EXPORT CuResult cuMemcpyDtoHAsync_v2(void* to, CuDevicePtr from, std::size_t bytes, CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (bytes == 0) return cu_success;
    if (to == nullptr || from == 0) return cu_invalid_value;
    const auto range = d.memory_at(from);
    if (range == nullptr || !range->on_device) return break_device(d, *found->device, cu_illegal_address);
    return enqueue_copies(d, lock, found, {{.to = reinterpret_cast<CuDevicePtr>(to), .from = from, .bytes = bytes}});
  });
}

FAKE_CUDA_EXPORT CuResult cuMemcpyAsync(CuDevicePtr to, CuDevicePtr from, std::size_t bytes, CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (bytes == 0) return cu_success;
    if (to == 0 || from == 0) return cu_invalid_value;
    return enqueue_copies(d, lock, found, {{.to = to, .from = from, .bytes = bytes}});
  });
}

// Rows from the host to a device, as the library has them copied.
FAKE_CUDA_EXPORT CuResult cuMemcpy2DAsync_v2(const CuMemcpy2d* copy, CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (copy == nullptr || copy->source_type != cu_memory_type_host || copy->destination_type != cu_memory_type_device)
      return cu_invalid_value;
    if (copy->width_bytes > copy->source_pitch || copy->width_bytes > copy->destination_pitch) return cu_invalid_value;
    if (copy->source_x != 0 || copy->source_y != 0 || copy->destination_x != 0 || copy->destination_y != 0)
      return cu_invalid_value;
    const auto range = d.memory_at(copy->destination_device);
    if (range == nullptr || !range->on_device) return break_device(d, *found->device, cu_illegal_address);
    std::vector<Copy> rows;
    for (std::size_t row = 0; row < copy->rows; ++row) {
      rows.push_back({.to = copy->destination_device + row * copy->destination_pitch,
                      .from = reinterpret_cast<CuDevicePtr>(copy->source_host) + row * copy->source_pitch,
                      .bytes = copy->width_bytes});
    }
    return enqueue_copies(d, lock, found, std::move(rows));
  });
}

FAKE_CUDA_EXPORT CuResult cuMemcpyBatchAsync_v2(CuDevicePtr* to, CuDevicePtr* from, std::size_t* bytes,
                                                std::size_t count, CuMemcpyAttributes* attributes,
                                                std::size_t* attribute_starts, std::size_t attribute_count,
                                                CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (found->is_legacy || to == nullptr || from == nullptr || bytes == nullptr || count == 0) return cu_invalid_value;
    if (attributes == nullptr || attribute_starts == nullptr) return cu_invalid_value;
    if (attribute_count == 0 || attribute_count > count || attribute_starts[0] != 0) return cu_invalid_value;
    constexpr int last_access_order = 3;
    for (std::size_t i = 0; i < attribute_count; ++i) {
      const bool is_in_order = attribute_starts[i] < count && (i == 0 || attribute_starts[i] > attribute_starts[i - 1]);
      const int access_order = attributes[i].source_access_order;
      if (!is_in_order || access_order < cu_source_access_order_stream || access_order > last_access_order) {
        return cu_invalid_value;
      }
    }
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < count; ++i) {
      if (to[i] == 0 || from[i] == 0 || bytes[i] == 0) return cu_invalid_value;
      copies.push_back({.to = to[i], .from = from[i], .bytes = bytes[i]});
    }
    return enqueue_copies(d, lock, found, std::move(copies));
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int priority) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device& device) {
    if (stream == nullptr || (flags & ~cu_stream_non_blocking) != 0) return cu_invalid_value;
    const auto made = d.new_stream(device, flags, std::clamp(priority, greatest_priority, least_priority));
    d.streams[made->handle] = made;
    *stream = made->handle;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamDestroy_v2(CuStream stream) {
  return call(__func__, [&](Driver& d, Lock&) {
    if (!d.streams.contains(stream)) return cu_invalid_handle;
    d.destroy_stream(stream);
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamGetCtx(CuStream stream, CuContext* context) {
  return call_of_stream(__func__, stream, [&](Driver&, Lock&, const std::shared_ptr<Stream>& found) {
    if (context == nullptr) return cu_invalid_value;
    *context = found->device->context;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamIsCapturing(CuStream stream, int* status) {
  return call_of_stream(__func__, stream, [&](Driver&, Lock&, const std::shared_ptr<Stream>& found) {
    if (status == nullptr) return cu_invalid_value;
    for (const auto& weak : found->device->streams) {
      const auto other = weak.lock();
      const bool is_capturing = other != nullptr && other->capture != cu_capture_status_none;
      if (found->is_legacy && is_capturing && other->is_blocking) return cu_stream_capture_implicit;
    }
    *status = found->capture;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamSynchronize(CuStream stream) {
  return call_of_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (found->capture != cu_capture_status_none) return cu_stream_capture_unsupported;
    std::vector<Point> points{{found, found->queued}};
    if (found->is_legacy) points = d.all_work(*found->device, true);
    return d.wait(lock, *found->device, points);
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned flags) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    const Event* const waited_for = Driver::find(d.events, event);
    if (waited_for == nullptr) return cu_invalid_handle;
    if (flags != 0) return cu_invalid_value;
    if (!waited_for->recorded) return cu_success;
    auto operation = operation_on(found);
    operation->after.push_back(*waited_for->recorded);
    return d.enqueue(std::move(operation));
  });
}

// The comparison is cyclic, as the device's is.
FAKE_CUDA_EXPORT CuResult cuStreamWaitValue32_v2(CuStream stream, CuDevicePtr address, std::uint32_t value,
                                                 unsigned flags) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    const auto word = [&d, address]() -> const std::uint32_t* {
      const auto range = d.memory_at(address);
      if (range == nullptr || !range->holds(address, sizeof(std::uint32_t))) return nullptr;
      return reinterpret_cast<const std::uint32_t*>(range->data + (address - range->start));
    };
    if (flags != cu_wait_value_geq || address % sizeof value != 0 || word() == nullptr) return cu_invalid_value;
    auto operation = operation_on(found);
    operation->waits_for_value = true;
    operation->ready = [word, value] {
      return word() == nullptr || static_cast<std::int32_t>(__atomic_load_n(word(), __ATOMIC_ACQUIRE) - value) >= 0;
    };
    operation->run = [word](Lock&) -> CuResult {
      const std::uint32_t* const seen = word();
      if (seen == nullptr) return cu_illegal_address;
      start_watching();
      happens_after(seen);
      stop_watching();
      return cu_success;
    };
    return d.enqueue(std::move(operation));
  });
}

FAKE_CUDA_EXPORT CuResult cuEventCreate(CuEvent* event, unsigned flags) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device& device) {
    if (event == nullptr || (flags & ~(cu_event_blocking_sync | cu_event_disable_timing)) != 0) return cu_invalid_value;
    *event = d.new_handle<CuEvent>();
    d.events[*event] = Event{&device, std::nullopt};
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuEventDestroy_v2(CuEvent event) {
  return call(__func__, [&](Driver& d, Lock&) { return d.events.erase(event) == 0 ? cu_invalid_handle : cu_success; });
}

FAKE_CUDA_EXPORT CuResult cuEventRecord(CuEvent event, CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    Event* const recorded = Driver::find(d.events, event);
    if (recorded == nullptr || recorded->device != found->device) return cu_invalid_handle;
    const CuResult result = d.enqueue(operation_on(found));
    if (result == cu_success) recorded->recorded = Point{found, found->queued};
    return result;
  });
}

FAKE_CUDA_EXPORT CuResult cuEventQuery(CuEvent event) {
  return call(__func__, [&](Driver& d, Lock&) {
    const Event* const queried = Driver::find(d.events, event);
    if (queried == nullptr) return cu_invalid_handle;
    if (queried->device->error != cu_success) return queried->device->error;
    if (!queried->recorded) return cu_success;
    if (!d.reached(*queried->recorded)) return cu_not_ready;
    happens_after(queried->recorded->stream.get());
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuModuleLoadData(CuModule* module, const void* image) {
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    if (module == nullptr || image == nullptr) return cu_invalid_value;
    const CuResult waited = d.synchronizing_call(lock, device, "cuModuleLoadData");
    if (waited != cu_success) return waited;
    *module = d.new_handle<CuModule>();
    d.modules[*module] = Module{&device};
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuModuleUnload(CuModule module) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device&) {
    if (d.modules.erase(module) == 0) return cu_invalid_handle;
    std::erase_if(d.functions, [&](const auto& entry) { return entry.second.module == module; });
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuModuleGetFunction(CuFunction* function, CuModule module, const char* name) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device&) {
    if (function == nullptr || name == nullptr) return cu_invalid_value;
    const Module* const found = Driver::find(d.modules, module);
    if (found == nullptr) return cu_invalid_handle;
    if (std::strcmp(name, "penstock_scatter") != 0) return cu_not_found;
    *function = d.new_handle<CuFunction>();
    d.functions[*function] = Function{module, found->device};
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuLaunchKernel(CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                         unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                         CuStream stream, void** parameters, void** extra) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    const Function* const kernel = Driver::find(d.functions, function);
    if (kernel == nullptr || kernel->device != found->device) return cu_invalid_handle;
    constexpr std::uint64_t most_threads = 1024;
    constexpr unsigned most_shared_bytes = 48 << 10;
    const auto blocks = std::uint64_t{grid_x} * grid_y * grid_z;
    const auto threads = std::uint64_t{block_x} * block_y * block_z;
    if (blocks == 0 || threads == 0 || threads > most_threads || shared_bytes > most_shared_bytes)
      return cu_invalid_value;
    if (parameters == nullptr || extra != nullptr) return cu_invalid_value;
    CuDevicePtr entries = 0;
    unsigned count = 0;
    std::memcpy(&entries, parameters[0], sizeof entries);
    std::memcpy(&count, parameters[1], sizeof count);
    auto operation = operation_on(found);
    // A block an entry: a grid that is too small leaves entries out.
    operation->run = [entries, count = std::min(count, grid_x), device = found->device](Lock& lock) {
      return run_scatter(lock, *device, entries, count);
    };
    return d.enqueue(std::move(operation));
  });
}

// Every function of the library's table is here, as it is declared there.
#define FAKE_CUDA_SAME(member, symbol, arguments) \
  static_assert(std::is_same_v<decltype(&symbol), decltype(Api::member)>);
PENSTOCK_CUDA_REQUIRED(FAKE_CUDA_SAME)
PENSTOCK_CUDA_OPTIONAL(FAKE_CUDA_SAME)
