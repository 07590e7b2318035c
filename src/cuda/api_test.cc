// Our declarations against those of cuda.h. All comparisons are made by the compiler; a build without cuda.h says so.
#include "cuda/api.h"

#include <gtest/gtest.h>

#if __has_include(<cuda.h>)

#include <cstddef>
#include <type_traits>

// Without the macros that give a function's newest version its plain name: every symbol under its own.
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

namespace penstock::cuda {
namespace {

template <typename T>
constexpr bool is_number = std::is_integral_v<T> || std::is_enum_v<T>;

// Whether a caller can pass the one for the other: numbers of one size, pointers to such, pointers to structures. The
// handles are pointers to structures that nobody knows, and enumerations are plain numbers here.
template <typename Ours, typename Theirs>
constexpr bool same_shape() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using OurTarget = std::remove_pointer_t<Ours>;
    using TheirTarget = std::remove_pointer_t<Theirs>;
    return std::is_const_v<OurTarget> == std::is_const_v<TheirTarget> &&
           same_shape<std::remove_const_t<OurTarget>, std::remove_const_t<TheirTarget>>();
  } else if constexpr (std::is_enum_v<Theirs>) {
    return is_number<Ours> && sizeof(Ours) == sizeof(Theirs);
  } else if constexpr (is_number<Ours> && is_number<Theirs>) {
    return sizeof(Ours) == sizeof(Theirs) && std::is_signed_v<Ours> == std::is_signed_v<Theirs>;
  } else {
    return std::is_same_v<Ours, Theirs> || (std::is_class_v<Ours> && std::is_class_v<Theirs>);
  }
}

template <typename Ours, typename Theirs>
constexpr bool same_function = false;
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
constexpr bool same_function<OurResult (*)(Ours...), TheirResult (*)(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return same_shape<OurResult, TheirResult>() && (same_shape<Ours, Theirs>() && ...);
  } else {
    return false;
  }
}();

static_assert(same_shape<int*, CUresult*>() && !same_shape<int*, const int*>() && !same_shape<int, long>());

#define SAME_FUNCTION(member, symbol, arguments) \
  static_assert(same_function<decltype(Api::member), decltype(&::symbol)>, #symbol);
PENSTOCK_CUDA_REQUIRED(SAME_FUNCTION)
PENSTOCK_CUDA_OPTIONAL(SAME_FUNCTION)
#undef SAME_FUNCTION
#define SAME_FUNCTION(member, symbol, arguments) \
  static_assert(same_function<decltype(CaptureApi::member), decltype(&::symbol)>, #symbol);
PENSTOCK_CUDA_CAPTURES(SAME_FUNCTION)
#undef SAME_FUNCTION

static_assert(cu_success == CUDA_SUCCESS);
static_assert(cu_invalid_value == CUDA_ERROR_INVALID_VALUE);
static_assert(cu_out_of_memory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cu_not_initialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(cu_deinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(cu_no_device == CUDA_ERROR_NO_DEVICE);
static_assert(cu_invalid_device == CUDA_ERROR_INVALID_DEVICE);
static_assert(cu_invalid_context == CUDA_ERROR_INVALID_CONTEXT);
static_assert(cu_ecc_uncorrectable == CUDA_ERROR_ECC_UNCORRECTABLE);
static_assert(cu_not_found == CUDA_ERROR_NOT_FOUND);
static_assert(cu_not_ready == CUDA_ERROR_NOT_READY);
static_assert(cu_illegal_address == CUDA_ERROR_ILLEGAL_ADDRESS);
static_assert(cu_host_memory_already_registered == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
static_assert(cu_launch_failed == CUDA_ERROR_LAUNCH_FAILED);
static_assert(cu_not_supported == CUDA_ERROR_NOT_SUPPORTED);
static_assert(cu_system_driver_mismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(cu_stream_capture_implicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(cu_unknown == CUDA_ERROR_UNKNOWN);

static_assert(cu_stream_non_blocking == CU_STREAM_NON_BLOCKING);
static_assert(cu_event_blocking_sync == CU_EVENT_BLOCKING_SYNC);
static_assert(cu_event_disable_timing == CU_EVENT_DISABLE_TIMING);
static_assert(cu_host_register_portable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(cu_host_register_device_map == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(cu_wait_value_geq == CU_STREAM_WAIT_VALUE_GEQ);
static_assert(cu_write_value_default == CU_STREAM_WRITE_VALUE_DEFAULT);
static_assert(cu_capture_status_none == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(cu_capture_status_active == CU_STREAM_CAPTURE_STATUS_ACTIVE);
static_assert(cu_user_object_no_destructor_sync == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
static_assert(cu_graph_user_object_move == CU_GRAPH_USER_OBJECT_MOVE);
static_assert(cu_capture_mode_global == CU_STREAM_CAPTURE_MODE_GLOBAL);
static_assert(cu_capture_mode_thread_local == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
static_assert(cu_capture_mode_relaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

static_assert(cu_attribute_pci_bus_id == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
static_assert(cu_attribute_pci_device_id == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
static_assert(cu_attribute_async_engine_count == CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
static_assert(cu_attribute_unified_addressing == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
static_assert(cu_attribute_pci_domain_id == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
static_assert(cu_attribute_compute_capability_major == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(cu_attribute_compute_capability_minor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(cu_attribute_can_use_host_pointer_for_registered_memory ==
              CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
static_assert(cu_attribute_host_register_supported == CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
static_assert(cu_attribute_gpu_direct_rdma_supported == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
static_assert(cu_attribute_dma_buf_supported == CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
static_assert(cu_attribute_host_numa_id == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);

static_assert(cu_pointer_memory_type == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(cu_pointer_buffer_id == CU_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(cu_pointer_is_managed == CU_POINTER_ATTRIBUTE_IS_MANAGED);
static_assert(cu_pointer_device_ordinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(cu_pointer_range_start == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
static_assert(cu_pointer_range_size == CU_POINTER_ATTRIBUTE_RANGE_SIZE);
static_assert(cu_pointer_is_legacy_ipc_capable == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
static_assert(cu_pointer_mempool_handle == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
static_assert(cu_memory_type_host == CU_MEMORYTYPE_HOST);
static_assert(cu_memory_type_device == CU_MEMORYTYPE_DEVICE);

static_assert(cu_source_access_order_stream == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(sizeof(CuMemLocation) == sizeof(CUmemLocation) &&
              offsetof(CuMemLocation, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(CuMemcpyAttributes) == sizeof(CUmemcpyAttributes));
static_assert(offsetof(CuMemcpyAttributes, source_access_order) == offsetof(CUmemcpyAttributes, srcAccessOrder));
static_assert(offsetof(CuMemcpyAttributes, source_hint) == offsetof(CUmemcpyAttributes, srcLocHint));
static_assert(offsetof(CuMemcpyAttributes, destination_hint) == offsetof(CUmemcpyAttributes, dstLocHint));
static_assert(offsetof(CuMemcpyAttributes, flags) == offsetof(CUmemcpyAttributes, flags));

static_assert(sizeof(CuMemcpy2d) == sizeof(CUDA_MEMCPY2D));
static_assert(offsetof(CuMemcpy2d, source_y) == offsetof(CUDA_MEMCPY2D, srcY));
static_assert(offsetof(CuMemcpy2d, source_type) == offsetof(CUDA_MEMCPY2D, srcMemoryType));
static_assert(offsetof(CuMemcpy2d, source_host) == offsetof(CUDA_MEMCPY2D, srcHost));
static_assert(offsetof(CuMemcpy2d, source_device) == offsetof(CUDA_MEMCPY2D, srcDevice));
static_assert(offsetof(CuMemcpy2d, source_pitch) == offsetof(CUDA_MEMCPY2D, srcPitch));
static_assert(offsetof(CuMemcpy2d, destination_x) == offsetof(CUDA_MEMCPY2D, dstXInBytes));
static_assert(offsetof(CuMemcpy2d, destination_type) == offsetof(CUDA_MEMCPY2D, dstMemoryType));
static_assert(offsetof(CuMemcpy2d, destination_host) == offsetof(CUDA_MEMCPY2D, dstHost));
static_assert(offsetof(CuMemcpy2d, destination_device) == offsetof(CUDA_MEMCPY2D, dstDevice));
static_assert(offsetof(CuMemcpy2d, destination_pitch) == offsetof(CUDA_MEMCPY2D, dstPitch));
static_assert(offsetof(CuMemcpy2d, width_bytes) == offsetof(CUDA_MEMCPY2D, WidthInBytes));
static_assert(offsetof(CuMemcpy2d, rows) == offsetof(CUDA_MEMCPY2D, Height));

TEST(CudaApi, is_declared_as_in_cuda_h) {
  SUCCEED() << "compiled against CUDA " << CUDA_VERSION;
}

}  // namespace
}  // namespace penstock::cuda

#else

TEST(CudaApi, is_declared_as_in_cuda_h) {
  GTEST_SKIP() << "this build had no cuda.h to compare with";
}

#endif
