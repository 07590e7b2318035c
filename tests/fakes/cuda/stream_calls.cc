// The driver's own functions: streams, events and kernels.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "call.h"

using namespace fake_cuda;

FAKE_CUDA_EXPORT CuResult cuStreamCreateWithPriority(CuStream* stream, unsigned flags, int /*priority*/) {
  // Where many streams wait, the driver was seen to wait with another until the device has nothing to do.
  constexpr std::size_t many_waits = 32;
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    if (stream == nullptr || (flags & ~cu_stream_non_blocking) != 0) return cu_invalid_value;
    if (device.waits_for_values.size() >= many_waits) {
      const CuResult waited = d.synchronizing_call(lock, device, "cuStreamCreateWithPriority");
      if (waited != cu_success) return waited;
    }
    const auto made = d.new_stream(device, flags);
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
  return call_of_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    if (status == nullptr) return cu_invalid_value;
    if (found->is_legacy && d.capture_beside(*found) != nullptr) return cu_stream_capture_implicit;
    constexpr int active = 1;
    constexpr int invalidated = 2;
    *status = found->capture == nullptr ? cu_capture_status_none : found->capture->is_spoilt ? invalidated : active;
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuStreamSynchronize(CuStream stream) {
  return call_of_stream(__func__, stream, [&](Driver& d, Lock& lock, const std::shared_ptr<Stream>& found) {
    if (found->capture != nullptr) {
      d.spoil(*found->capture, "its stream was waited for");
      return cu_stream_capture_unsupported;
    }
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
    if (waited_for->captured != nullptr) {
      d.spoil(*waited_for->captured, "another stream was to join it, which the fake does not model");
      return cu_not_supported;
    }
    if (!waited_for->recorded) return cu_success;
    auto operation = operation_on(found);
    operation->after.push_back(*waited_for->recorded);
    return d.enqueue(std::move(operation));
  });
}

namespace {

// Null where there is no memory any more.
std::uint32_t* word_at(Driver& driver, CuDevicePtr address) {
  const auto range = driver.memory_at(address);
  if (range == nullptr || !range->holds(address, sizeof(std::uint32_t))) return nullptr;
  return reinterpret_cast<std::uint32_t*>(range->data + (address - range->start));
}

}  // namespace

FAKE_CUDA_EXPORT CuResult cuStreamWriteValue32_v2(CuStream stream, CuDevicePtr address, std::uint32_t value,
                                                  unsigned flags) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    if (flags != 0 || address % sizeof value != 0 || word_at(d, address) == nullptr) return cu_invalid_value;
    auto operation = operation_on(found);
    operation->word = address;
    operation->run = [&d, address, value](Lock&) -> CuResult {
      std::uint32_t* const word = word_at(d, address);
      if (word == nullptr) return cu_illegal_address;
      start_watching();
      __atomic_store_n(word, value, __ATOMIC_RELEASE);
      stop_watching();
      return cu_success;
    };
    return d.enqueue(std::move(operation));
  });
}

// The comparison is cyclic, as the device's is.
FAKE_CUDA_EXPORT CuResult cuStreamWaitValue32_v2(CuStream stream, CuDevicePtr address, std::uint32_t value,
                                                 unsigned flags) {
  return call_on_stream(__func__, stream, [&](Driver& d, Lock&, const std::shared_ptr<Stream>& found) {
    const auto word = [&d, address]() -> const std::uint32_t* { return word_at(d, address); };
    if (flags != cu_wait_value_geq || address % sizeof value != 0 || word() == nullptr) return cu_invalid_value;
    auto operation = operation_on(found);
    operation->waits_for_value = true;
    operation->word = address;
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
    d.events[*event] = Event{&device, std::nullopt, nullptr};
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
    if (result != cu_success) return result;
    recorded->captured = found->capture;
    recorded->recorded.reset();
    if (found->capture == nullptr) recorded->recorded = Point{found, found->queued};
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuEventQuery(CuEvent event) {
  return call(__func__, [&](Driver& d, Lock&) {
    const Event* const queried = Driver::find(d.events, event);
    if (queried == nullptr) return cu_invalid_handle;
    if (queried->device->error != cu_success) return queried->device->error;
    if (queried->captured != nullptr) {
      d.spoil(*queried->captured, "an event in it was asked for");
      return cu_captured_event;
    }
    if (!queried->recorded) return cu_success;
    if (!d.reached(*queried->recorded)) return cu_not_ready;
    happens_after(queried->recorded->stream.get());
    return cu_success;
  });
}

FAKE_CUDA_EXPORT CuResult cuModuleLoadData(CuModule* module, const void* image) {
  return call_in_context(__func__, [&](Driver& d, Lock& lock, Device& device) {
    if (module == nullptr || image == nullptr) return cu_invalid_value;
    if (!d.takes_kernels) return cu_not_supported;
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
    const auto kernel = kernel_from_name(name);
    if (!kernel) return cu_not_found;
    *function = d.new_handle<CuFunction>();
    d.functions[*function] = Function{module, found->device, *kernel};
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
    auto operation = operation_on(found);
    operation->unit = Unit::compute;
    operation->run = launch_of(kernel->kernel, *found->device, grid_x, parameters);
    return d.enqueue(std::move(operation));
  });
}
