// The driver's own functions: memory and copies.
#include <cstring>
#include <utility>

#include "call.h"

using namespace fake_cuda;

namespace {

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

// Short copies to the device are carried by the commands themselves.
constexpr std::size_t most_bytes_to_compute = 24 << 10;

// Registered memory is read and written when the copy runs. Of pageable memory, the bytes are taken before the call
// returns, or the call returns when they have arrived.
CuResult enqueue_copies(Driver& d, Lock& lock, const std::shared_ptr<Stream>& stream, std::vector<Copy> copies,
                        Unit unit = Unit::compute) {
  Device& device = *stream->device;
  auto operation = operation_on(stream);
  operation->unit = unit;
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
  if (is_synchronous && stream->capture != nullptr) {
    d.spoil(*stream->capture, "a copy to pageable memory was given to its stream");
    return cu_stream_capture_unsupported;
  }
  const CuResult result = d.enqueue(std::move(operation));
  if (result != cu_success || !is_synchronous) return result;
  return d.wait(lock, device, {{stream, stream->queued}});
}

}  // namespace

FAKE_CUDA_EXPORT CuResult cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device& device) {
    if (free_bytes == nullptr || total_bytes == nullptr) return cu_invalid_value;
    *free_bytes = d.device_bytes - std::min<std::size_t>(d.device_bytes, device.used_bytes);
    *total_bytes = d.device_bytes;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuMemAlloc_v2(CuDevicePtr* address, std::size_t bytes) {
  return call_in_context(__func__, [&](Driver& d, Lock&, Device& device) {
    return address == nullptr ? cu_invalid_value : d.allocate(device, bytes, *address);
  });
}

FAKE_CUDA_EXPORT CuResult cuMemFree_v2(CuDevicePtr address) {
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    const CuResult waited = d.synchronizing_call(lock, device, "cuMemFree_v2");
    return waited != cu_success ? waited : d.free(lock, address);
  });
}

FAKE_CUDA_EXPORT CuResult cuMemHostRegister_v2(void* address, std::size_t bytes, unsigned flags) {
  return call_in_context(
      __func__, [&](Driver& d, Lock&, Device& device) { return d.register_host(device, address, bytes, flags); });
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
    const CuDevicePtr into_range = address - range->start;
    const CuDevicePtr before_piece = range->piece_bytes == 0 ? 0 : into_range - into_range % range->piece_bytes;
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
        return put(range->start + before_piece);
      case cu_pointer_range_size:
        return put(range->piece_bytes == 0 ? range->bytes : std::min(range->piece_bytes, range->bytes - before_piece));
      case cu_pointer_is_legacy_ipc_capable:
        return put(range->on_device && range->piece_bytes == 0);
      case cu_pointer_mempool_handle:
        return put(static_cast<void*>(nullptr));
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
    const Unit unit = bytes > most_bytes_to_compute ? Unit::copy_to_device : Unit::compute;
    return enqueue_copies(d, lock, found, {{.to = to, .from = reinterpret_cast<CuDevicePtr>(from), .bytes = bytes}},
                          unit);
  });
}

FAKE_CUDA_EXPORT CuResult cuMemcpyDtoHAsync_v2(void* to, CuDevicePtr from, std::size_t bytes, CuStream stream) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (bytes == 0) return cu_success;
    if (to == nullptr || from == 0) return cu_invalid_value;
    const auto range = d.memory_at(from);
    if (range == nullptr || !range->on_device) return break_device(d, *found->device, cu_illegal_address);
    return enqueue_copies(d, lock, found, {{.to = reinterpret_cast<CuDevicePtr>(to), .from = from, .bytes = bytes}},
                          Unit::copy_from_device);
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
    return enqueue_copies(d, lock, found, std::move(rows), copy->rows > 1 ? Unit::copy_to_device : Unit::compute);
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
