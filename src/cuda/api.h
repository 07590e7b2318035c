// The part of the CUDA driver's interface that Penstock uses, in our own declarations: building needs no CUDA. Where
// cuda.h exists, a test compares every type, constant and signature with it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::cuda {

inline constexpr const char* library_name = "libcuda.so.1";

// Results that are looked at by name; others are passed on as numbers.
using CuResult = int;
inline constexpr CuResult cu_success = 0;
inline constexpr CuResult cu_invalid_value = 1;
inline constexpr CuResult cu_out_of_memory = 2;
inline constexpr CuResult cu_not_initialized = 3;
inline constexpr CuResult cu_deinitialized = 4;
inline constexpr CuResult cu_no_device = 100;
inline constexpr CuResult cu_invalid_device = 101;
inline constexpr CuResult cu_invalid_context = 201;
inline constexpr CuResult cu_ecc_uncorrectable = 214;
inline constexpr CuResult cu_not_found = 500;
inline constexpr CuResult cu_not_ready = 600;
inline constexpr CuResult cu_illegal_address = 700;
inline constexpr CuResult cu_host_memory_already_registered = 712;
inline constexpr CuResult cu_launch_failed = 719;
inline constexpr CuResult cu_not_supported = 801;
inline constexpr CuResult cu_system_driver_mismatch = 803;
inline constexpr CuResult cu_stream_capture_implicit = 906;
inline constexpr CuResult cu_unknown = 999;

using CuDevice = int;
using CuDevicePtr = std::uint64_t;
using CuContext = struct CuContextTag*;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuModule = struct CuModuleTag*;
using CuFunction = struct CuFunctionTag*;
using CuGraph = struct CuGraphTag*;
using CuGraphExecutable = struct CuGraphExecutableTag*;
using CuGraphNode = struct CuGraphNodeTag*;
using CuUserObject = struct CuUserObjectTag*;
using CuHostFunction = void (*)(void*);

// Addresses of GPUs are numbers to the driver, and pointers to everyone else.
inline CuDevicePtr device_address(const std::byte* pointer) {
  return reinterpret_cast<CuDevicePtr>(pointer);
}
inline std::byte* device_pointer(CuDevicePtr address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Flags.
inline constexpr unsigned cu_stream_non_blocking = 1;
inline constexpr unsigned cu_event_blocking_sync = 1;
inline constexpr unsigned cu_event_disable_timing = 2;
inline constexpr unsigned cu_host_register_portable = 1;
inline constexpr unsigned cu_host_register_device_map = 2;
inline constexpr unsigned cu_wait_value_geq = 0;
inline constexpr unsigned cu_write_value_default = 0;
inline constexpr int cu_capture_status_none = 0;
inline constexpr int cu_capture_status_active = 1;
inline constexpr unsigned cu_user_object_no_destructor_sync = 1;
inline constexpr unsigned cu_graph_user_object_move = 1;
inline constexpr int cu_capture_mode_global = 0;
inline constexpr int cu_capture_mode_thread_local = 1;
inline constexpr int cu_capture_mode_relaxed = 2;

// CUdevice_attribute.
inline constexpr int cu_attribute_pci_bus_id = 33;
inline constexpr int cu_attribute_pci_device_id = 34;
inline constexpr int cu_attribute_async_engine_count = 40;
inline constexpr int cu_attribute_unified_addressing = 41;
inline constexpr int cu_attribute_pci_domain_id = 50;
inline constexpr int cu_attribute_compute_capability_major = 75;
inline constexpr int cu_attribute_compute_capability_minor = 76;
inline constexpr int cu_attribute_can_use_host_pointer_for_registered_memory = 91;
inline constexpr int cu_attribute_host_register_supported = 99;
inline constexpr int cu_attribute_gpu_direct_rdma_supported = 116;
inline constexpr int cu_attribute_dma_buf_supported = 124;
inline constexpr int cu_attribute_host_numa_id = 134;

// CUpointer_attribute and CUmemorytype.
inline constexpr int cu_pointer_memory_type = 2;
inline constexpr int cu_pointer_buffer_id = 7;
inline constexpr int cu_pointer_is_managed = 8;
inline constexpr int cu_pointer_device_ordinal = 9;
inline constexpr int cu_pointer_range_start = 11;
inline constexpr int cu_pointer_range_size = 12;
inline constexpr int cu_pointer_is_legacy_ipc_capable = 10;
inline constexpr int cu_pointer_mempool_handle = 17;
inline constexpr unsigned cu_memory_type_host = 1;
inline constexpr unsigned cu_memory_type_device = 2;

struct CuMemLocation {
  int type;
  int id;
};
struct CuMemcpyAttributes {
  int source_access_order;
  CuMemLocation source_hint;
  CuMemLocation destination_hint;
  unsigned flags;
};
inline constexpr int cu_source_access_order_stream = 1;

struct CuGraphEdgeData;

// Rows of `width_bytes`, each `pitch` after the one before.
struct CuMemcpy2d {
  std::size_t source_x = 0;
  std::size_t source_y = 0;
  unsigned source_type = 0;
  const void* source_host = nullptr;
  CuDevicePtr source_device = 0;
  void* source_array = nullptr;
  std::size_t source_pitch = 0;
  std::size_t destination_x = 0;
  std::size_t destination_y = 0;
  unsigned destination_type = 0;
  void* destination_host = nullptr;
  CuDevicePtr destination_device = 0;
  void* destination_array = nullptr;
  std::size_t destination_pitch = 0;
  std::size_t width_bytes = 0;
  std::size_t rows = 0;
};

// Every function by the name of its symbol, in a table of pointers: X(member, symbol, arguments).
// Required: present in every driver since CUDA 11.
#define PENSTOCK_CUDA_REQUIRED(X)                                                                                 \
  X(init, cuInit, (unsigned flags))                                                                               \
  X(driver_get_version, cuDriverGetVersion, (int* version))                                                       \
  X(get_error_name, cuGetErrorName, (CuResult error, const char** text))                                          \
  X(get_error_string, cuGetErrorString, (CuResult error, const char** text))                                      \
  X(device_get_count, cuDeviceGetCount, (int* count))                                                             \
  X(device_get, cuDeviceGet, (CuDevice * device, int ordinal))                                                    \
  X(device_get_name, cuDeviceGetName, (char* name, int length, CuDevice device))                                  \
  X(device_total_mem, cuDeviceTotalMem_v2, (std::size_t * bytes, CuDevice device))                                \
  X(device_get_attribute, cuDeviceGetAttribute, (int* value, int attribute, CuDevice device))                     \
  X(primary_context_retain, cuDevicePrimaryCtxRetain, (CuContext * context, CuDevice device))                     \
  X(primary_context_release, cuDevicePrimaryCtxRelease_v2, (CuDevice device))                                     \
  X(primary_context_get_state, cuDevicePrimaryCtxGetState, (CuDevice device, unsigned* flags, int* active))       \
  X(context_push, cuCtxPushCurrent_v2, (CuContext context))                                                       \
  X(context_pop, cuCtxPopCurrent_v2, (CuContext * context))                                                       \
  X(memory_get_info, cuMemGetInfo_v2, (std::size_t * free_bytes, std::size_t * total_bytes))                      \
  X(memory_allocate, cuMemAlloc_v2, (CuDevicePtr * address, std::size_t bytes))                                   \
  X(memory_free, cuMemFree_v2, (CuDevicePtr address))                                                             \
  X(host_register, cuMemHostRegister_v2, (void* address, std::size_t bytes, unsigned flags))                      \
  X(host_unregister, cuMemHostUnregister, (void* address))                                                        \
  X(host_get_device_pointer, cuMemHostGetDevicePointer_v2, (CuDevicePtr * device, void* host, unsigned flags))    \
  X(pointer_get_attribute, cuPointerGetAttribute, (void* value, int attribute, CuDevicePtr address))              \
  X(copy_to_device, cuMemcpyHtoDAsync_v2, (CuDevicePtr to, const void* from, std::size_t bytes, CuStream stream)) \
  X(copy_from_device, cuMemcpyDtoHAsync_v2, (void* to, CuDevicePtr from, std::size_t bytes, CuStream stream))     \
  X(copy_between_devices, cuMemcpyAsync, (CuDevicePtr to, CuDevicePtr from, std::size_t bytes, CuStream stream))  \
  X(copy_2d, cuMemcpy2DAsync_v2, (const CuMemcpy2d* copy, CuStream stream))                                       \
  X(stream_create, cuStreamCreateWithPriority, (CuStream * stream, unsigned flags, int priority))                 \
  X(stream_destroy, cuStreamDestroy_v2, (CuStream stream))                                                        \
  X(stream_get_context, cuStreamGetCtx, (CuStream stream, CuContext * context))                                   \
  X(stream_is_capturing, cuStreamIsCapturing, (CuStream stream, int* status))                                     \
  X(stream_synchronize, cuStreamSynchronize, (CuStream stream))                                                   \
  X(stream_wait_event, cuStreamWaitEvent, (CuStream stream, CuEvent event, unsigned flags))                       \
  X(event_create, cuEventCreate, (CuEvent * event, unsigned flags))                                               \
  X(event_destroy, cuEventDestroy_v2, (CuEvent event))                                                            \
  X(event_record, cuEventRecord, (CuEvent event, CuStream stream))                                                \
  X(event_query, cuEventQuery, (CuEvent event))                                                                   \
  X(module_load_data, cuModuleLoadData, (CuModule * module, const void* image))                                   \
  X(module_unload, cuModuleUnload, (CuModule module))                                                             \
  X(module_get_function, cuModuleGetFunction, (CuFunction * function, CuModule module, const char* name))         \
  X(launch_kernel, cuLaunchKernel,                                                                                \
    (CuFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,  \
     unsigned block_z, unsigned shared_bytes, CuStream stream, void** parameters, void** extra))

// Optional: null where the driver has none.
#define PENSTOCK_CUDA_OPTIONAL(X)                                                                                   \
  X(stream_wait_value, cuStreamWaitValue32_v2,                                                                      \
    (CuStream stream, CuDevicePtr address, std::uint32_t value, unsigned flags))                                    \
  X(stream_write_value, cuStreamWriteValue32_v2,                                                                    \
    (CuStream stream, CuDevicePtr address, std::uint32_t value, unsigned flags))                                    \
  X(copy_batch, cuMemcpyBatchAsync_v2,                                                                              \
    (CuDevicePtr * to, CuDevicePtr * from, std::size_t * bytes, std::size_t count, CuMemcpyAttributes * attributes, \
     std::size_t * attribute_starts, std::size_t attribute_count, CuStream stream))                                 \
  X(stream_get_capture_info, cuStreamGetCaptureInfo_v3,                                                             \
    (CuStream stream, int* status, std::uint64_t* id, CuGraph* graph, const CuGraphNode** dependencies,             \
     const CuGraphEdgeData** edges, std::size_t* dependency_count))                                                 \
  X(user_object_create, cuUserObjectCreate,                                                                         \
    (CuUserObject * object, void* pointer, CuHostFunction destroy, unsigned references, unsigned flags))            \
  X(graph_retain_user_object, cuGraphRetainUserObject,                                                              \
    (CuGraph graph, CuUserObject object, unsigned references, unsigned flags))

struct Api {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define PENSTOCK_CUDA_MEMBER(member, symbol, arguments) CuResult(*member) arguments = nullptr;
  PENSTOCK_CUDA_REQUIRED(PENSTOCK_CUDA_MEMBER)
  PENSTOCK_CUDA_OPTIONAL(PENSTOCK_CUDA_MEMBER)
};

// What has to do with captures of graphs, in a table of its own. RelaxedCaptureMode uses the first; the others are for
// tests, which capture as programs do.
#define PENSTOCK_CUDA_CAPTURES(X)                                              \
  X(exchange_mode, cuThreadExchangeStreamCaptureMode, (int* mode))             \
  X(begin, cuStreamBeginCapture_v2, (CuStream stream, int mode))               \
  X(end, cuStreamEndCapture, (CuStream stream, CuGraph * graph))               \
  X(instantiate, cuGraphInstantiateWithFlags,                                  \
    (CuGraphExecutable * executable, CuGraph graph, unsigned long long flags)) \
  X(launch, cuGraphLaunch, (CuGraphExecutable executable, CuStream stream))    \
  X(destroy_executable, cuGraphExecDestroy, (CuGraphExecutable executable))    \
  X(destroy, cuGraphDestroy, (CuGraph graph))

struct CaptureApi {
  PENSTOCK_CUDA_CAPTURES(PENSTOCK_CUDA_MEMBER)
};
#undef PENSTOCK_CUDA_MEMBER

}  // namespace penstock::cuda
