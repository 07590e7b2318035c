// CudaPlatform: a QueuePair driven by a CUDA kernel; see queue_pair.h. A group is the active threads of a warp.
//
// Queues and doorbells may be in host memory or behind the bus: what the controller sees is ordered for the system,
// what other warps see for the device. Doorbells are written and never read: reads of a controller's registers by a GPU
// have taken links down.
#pragma once

#include <cstdint>
#include <cuda/atomic>

#include "nvme/queue_pair.h"

namespace penstock::nvme {

class CudaPlatform {
 public:
  // REQUIRES: made by all threads that will act together, which stay together.
  __device__ CudaPlatform()
      : mask_(__activemask()),
        lane_(lane_id()),
        leader_(__ffs(static_cast<int>(mask_)) - 1),
        rank_(__popc(mask_ & ((1U << lane_) - 1))),
        size_(__popc(mask_)) {}

  __device__ std::uint32_t size() const { return size_; }
  __device__ std::uint32_t rank() const { return rank_; }
  __device__ bool is_leader() const { return rank_ == 0; }
  __device__ void sync() const { __syncwarp(mask_); }
  __device__ bool all(bool value) const { return __all_sync(mask_, value) != 0; }
  __device__ bool any(bool value) const { return __any_sync(mask_, value) != 0; }
  __device__ std::uint64_t broadcast(std::uint64_t value) const {
    return __shfl_sync(mask_, static_cast<unsigned long long>(value), leader_);
  }
  __device__ std::uint32_t leading(bool value) const {
    const std::uint32_t failing = mask_ & ~__ballot_sync(mask_, value);
    return failing == 0 ? size_ : __popc(mask_ & ((failing & -failing) - 1));
  }

  // Whether no lane before this one gave the same.
  __device__ bool is_first(std::uint32_t value) const {
    return (__match_any_sync(mask_, value) & ((1U << lane_) - 1)) == 0;
  }
  // Each lane looks at the one before it, then at the one that that one looked at, twice as far every time: the lanes
  // of a group need not be neighbours. Those that have come to the leader stay there.
  __device__ Largest largest(std::uint32_t value) const {
    const std::uint32_t earlier = mask_ & ((1U << lane_) - 1);
    const int previous = earlier == 0 ? leader_ : 31 - __clz(static_cast<int>(earlier));
    std::uint32_t so_far = value;
    int looked_at = previous;
    for (std::uint32_t reach = 1; reach < size_; reach *= 2) {
      const std::uint32_t other = __shfl_sync(mask_, so_far, looked_at);
      so_far = other > so_far ? other : so_far;
      looked_at = __shfl_sync(mask_, looked_at, looked_at);
    }
    const std::uint32_t before = __shfl_sync(mask_, so_far, previous);
    const int last = 31 - __clz(static_cast<int>(mask_));
    return {earlier == 0 ? 0 : before, __shfl_sync(mask_, so_far, last)};
  }

  template <typename T>
  __device__ T load_acquire(const T& word) const {
    return DeviceWord<T>(const_cast<T&>(word)).load(cuda::memory_order_acquire);
  }
  template <typename T>
  __device__ void store_relaxed(T& word, T value) const {
    DeviceWord<T>(word).store(value, cuda::memory_order_relaxed);
  }
  template <typename T>
  __device__ void store_release(T& word, T value) const {
    DeviceWord<T>(word).store(value, cuda::memory_order_release);
  }
  template <typename T>
  __device__ T fetch_add(T& word, T value) const {
    return DeviceWord<T>(word).fetch_add(value, cuda::memory_order_relaxed);
  }
  template <typename T>
  __device__ bool compare_exchange(T& word, T& expected, T value) const {
    return DeviceWord<T>(word).compare_exchange_strong(expected, value, cuda::memory_order_acq_rel,
                                                       cuda::memory_order_acquire);
  }
  __device__ bool try_lock(std::uint32_t& word) const {
    std::uint32_t unlocked = 0;
    return compare_exchange(word, unlocked, 1U);
  }

  __device__ void completed(Token*) const {}

  __device__ void write_entry(Command& entry, const Command& command, std::uint16_t cid) const {
    const auto* from = reinterpret_cast<const uint4*>(&command);
    auto* to = reinterpret_cast<uint4*>(&entry);
    uint4 first = from[0];
    first.x = (first.x & 0xffff) | static_cast<std::uint32_t>(cid) << 16;  // the first double word, in one store
    to[0] = first;
    for (int i = 1; i < 4; ++i) to[i] = from[i];
  }
  __device__ void ring(std::uint32_t& doorbell, std::uint32_t value) const {
    __threadfence_system();
    *const_cast<volatile std::uint32_t*>(&doorbell) = value;
  }
  __device__ void order_doorbells() const { __threadfence_system(); }
  __device__ std::uint32_t load_phase(const std::uint32_t& status) const {
    return cuda::atomic_ref<std::uint32_t, cuda::thread_scope_system>(const_cast<std::uint32_t&>(status))
        .load(cuda::memory_order_acquire);
  }

  // In nanoseconds.
  __device__ std::uint64_t now() const {
    std::uint64_t time = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  }
  __device__ void pause() {
    __nanosleep(nap_ns_);
    if (nap_ns_ < 1000) nap_ns_ *= 2;
  }

 private:
  // Asked of the hardware: which threads make up a warp depends on every dimension of a block.
  __device__ static std::uint32_t lane_id() {
    std::uint32_t lane = 0;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }

  template <typename T>
  using DeviceWord = cuda::atomic_ref<T, cuda::thread_scope_device>;

  const std::uint32_t mask_;
  const std::uint32_t lane_;
  const int leader_;
  const std::uint32_t rank_;
  const std::uint32_t size_;
  std::uint32_t nap_ns_ = 20;
};

}  // namespace penstock::nvme
