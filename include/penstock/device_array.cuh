// device::Array<T>: a store, or a stretch of one, that a CUDA kernel indexes like memory. It may be far larger than the
// GPU's: pages are read when a kernel touches them, and kept in a cache of GPU memory (penstock/gpu_array.h).
//
//   #include <penstock/device_array.cuh>
//
//   __global__ void sum_of(penstock::device::Array<float> values, const long long* wanted, float* out) {
//     const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
//     out[thread] = values[wanted[thread]];                     // each thread its own element
//   }
//   __global__ void sum_all(penstock::device::Array<float> values, float* sum) {
//     const unsigned long long warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, step = values.per_page();
//     float own = 0;                                            // a warp together, page by page: the fast way
//     const auto add = [&](const float* elements, unsigned long long, unsigned count) {
//       for (unsigned i = threadIdx.x % 32; i < count; i += 32) own += elements[i];
//     };
//     if (values.visit_warp(warp * step, step, add).ok()) atomicAdd(sum, own);
//   }
//
// For nvcc and NVRTC, C++17, without flags but the path to this header. The parameter is one address of 64 bits: what
// GpuArray::handle gives, or any integer of that value.
//
// Give kernels __launch_bounds__: what happens rarely is compiled apart, and claims almost 200 registers otherwise. In
// relocatable device code (-rdc=true) it is compiled into each kernel instead.
//
// What can go wrong is in the result (IoStatus); the program sees the first failure in GpuArray::statistics. No call
// waits for ever (penstock/device.cuh); a timeout counts from the first page of a call that is not resident. A thread
// that waits for another's fetch holds nothing that others need, and no thread waits for room in the cache.
//
// REQUIRES of T: copied byte by byte, of a size that is a power of two and at most 512. The array's beginning in its
// store must be a multiple of that, else IoStatus::misaligned. The array is read-only: what is written to the store
// meanwhile may or may not be seen, until GpuArray::clear.
//
// Thread safety: any number of threads of any number of kernels. Lifetime: the GpuArray and its set of queues must be
// open while a kernel that uses it runs.
#pragma once

#include "penstock/device.cuh"
#include "penstock/paged_array.h"

namespace penstock::device {

// The platform of page_cache.h: the active threads of a warp.
class ArrayPlatform : public WarpPlatform {
 public:
  using Passed = ArrayPlatform;

  // Words in global memory.
  __device__ std::uint64_t add_acquire(std::uint64_t& word, std::uint64_t value) const {
    std::uint64_t before;
    asm volatile("atom.acquire.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(before)
                 : "l"(__cvta_generic_to_global(&word)), "l"(value)
                 : "memory");
    return before;
  }
  // Without waiting for what was there.
  __device__ void add(std::uint64_t& word, std::uint64_t value) const {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(&word)), "l"(value)
                 : "memory");
  }
  __device__ void add_release(std::uint64_t& word, std::uint64_t value) const {
    asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(&word)), "l"(value)
                 : "memory");
  }
  // What the first of the lanes with the same value has given.
  __device__ std::uint64_t of_same(std::uint32_t value, std::uint64_t given) const {
    const std::uint32_t same = __match_any_sync(mask_, value);
    return __shfl_sync(mask_, static_cast<unsigned long long>(given), __ffs(static_cast<int>(same)) - 1);
  }
  // The same in all lanes, one of so many.
  __device__ std::uint32_t queue_of(std::uint32_t count) const {
    return static_cast<std::uint32_t>(broadcast(warp_number())) % count;
  }
  __device__ std::uint32_t stripe() const {
    std::uint32_t processor = 0;
    asm("mov.u32 %0, %%smid;" : "=r"(processor));
    return processor;
  }
};

template <typename T>
class Array {
 public:
  static_assert(
      sizeof(T) <= 512 && (sizeof(T) & (sizeof(T) - 1)) == 0,
      "a page has whole elements: choose a T whose size is a power of two, such as float for rows of 12 bytes");
  static_assert(__is_trivially_copyable(T), "elements are copied byte by byte: choose a T without constructors");

  Array() = default;  // no array: every call ends with IoStatus::wrong_layout
  PENSTOCK_ANYWHERE Array(PagedArray* array) : array_(array) {}
  PENSTOCK_ANYWHERE explicit Array(std::uint64_t handle) : array_(reinterpret_cast<PagedArray*>(handle)) {}

  // In elements. 0 for an array that this kernel was not compiled for.
  __device__ std::uint64_t size() const { return fits() ? array_->size_bytes / sizeof(T) : 0; }
  __device__ std::uint32_t per_page() const { return fits() ? (1U << array_->cache.page_shift) / sizeof(T) : 1; }

  // Each thread for itself. T{} if it can't be had: `get` tells why, and GpuArray::statistics that it happened.
  __device__ T operator[](std::uint64_t index) const {
    T value{};
    (void)get(index, value);
    return value;
  }
  // Threads of a warp that come together share pages. A timeout of 0 is the set's.
  __device__ IoResult get(std::uint64_t index, T& value, std::uint64_t timeout_ns = 0) const {
    const Facts facts = look();
    if (!facts.are_sound) return unsound();
    ArrayPlatform platform;
    const bool is_inside = index < facts.size;
    const Stretch stretch{index * sizeof(T), is_inside ? sizeof(T) : 0};
    const IoResult result = Io(*array_, platform).visit_each(stretch, timeout_ns, [&](const unsigned char* bytes) {
      value = *reinterpret_cast<const T*>(bytes);
    });
    return is_inside ? result : fail(IoStatus::out_of_window);
  }

  // A warp together, with the same numbers: calls use(const T* elements, std::uint64_t done, std::uint32_t count) for
  // page after page, in all threads. `elements` are those from number first + done on, in GPU memory or, if the cache
  // has no room, in pinned memory. They stay until `use` returns. `use` must not call an Array or Queues, nor wait for
  // other warps. The result is the same in all threads; after a failure `use` is not called any more.
  template <typename Use>
  __device__ IoResult visit_warp(std::uint64_t first, std::uint64_t count, Use use,
                                 std::uint64_t timeout_ns = 0) const {
    const Facts facts = look();
    const bool is_inside = (first <= facts.size) & (count <= facts.size - first);
    if (!(facts.are_sound & is_inside)) return facts.are_sound ? fail(IoStatus::out_of_window) : unsound();
    ArrayPlatform platform;
    return Io(*array_, platform)
        .visit_together({first * sizeof(T), count * sizeof(T)}, timeout_ns,
                        [&](const unsigned char* bytes, std::uint64_t done, std::uint32_t length) {
                          use(reinterpret_cast<const T*>(bytes), done / sizeof(T),
                              static_cast<std::uint32_t>(length / sizeof(T)));
                        });
  }
  // The same, copied.
  __device__ IoResult read_warp(std::uint64_t first, std::uint64_t count, T* to, std::uint64_t timeout_ns = 0) const {
    const WarpPlatform warp;
    const std::uint32_t rank = warp.rank();
    const std::uint32_t lanes = warp.size();
    const IoResult result = visit_warp(
        first, count,
        [&](const T* elements, std::uint64_t done, std::uint32_t length) {
          for (std::uint32_t i = rank; i < length; i += lanes) to[done + i] = elements[i];
        },
        timeout_ns);
    warp.sync();
    return result;
  }

 private:
  using Io = PagedArrayIo<ArrayPlatform>;

  __device__ bool fits() const { return array_ != nullptr && array_->layout == array_layout_version; }
  // Loaded together, and judged without a branch between: each load takes long.
  struct Facts {
    bool are_sound = false;
    std::uint64_t size = 0;
  };
  __device__ Facts look() const {
    if (array_ == nullptr) return {};
    const std::uint32_t layout = array_->layout;
    const std::uint64_t begin = array_->begin;
    const std::uint64_t size_bytes = array_->size_bytes;
    const bool are_sound = (layout == array_layout_version) & (begin % sizeof(T) == 0);
    return {are_sound, size_bytes / sizeof(T)};
  }
  __device__ IoResult unsound() const { return fits() ? fail(IoStatus::misaligned) : IoResult{IoStatus::wrong_layout}; }
  __device__ IoResult fail(IoStatus status) const {
    const IoResult result{status};
    atomicCAS(reinterpret_cast<unsigned long long*>(&array_->first_failure), 0ULL,
              static_cast<unsigned long long>(pack(result)));
    return result;
  }

  PagedArray* array_ = nullptr;
};
static_assert(sizeof(Array<float>) == sizeof(std::uint64_t), "one parameter of 64 bits");

}  // namespace penstock::device
