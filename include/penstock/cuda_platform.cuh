// CudaPlatform: a QueuePair driven by a CUDA kernel; see queue_pair.h. A group is the active threads of a warp.
//
// Queues and doorbells may be in host memory or behind the bus: what the controller sees is ordered for the system,
// what other warps see for the device. Doorbells are written and never read: reads of a controller's registers by a GPU
// have taken links down.
//
// Written in PTX where C++ has no word for it, so that NVRTC needs no library. From Turing (sm_75) on.
#pragma once

#include "penstock/queue_pair.h"

namespace penstock::nvme {

// Words that other warps of the device see, of 32 or 64 bits.
namespace word {

template <typename T>
__device__ inline T load_acquire(const T& word) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a word has 32 or 64 bits");
  if constexpr (sizeof(T) == 4) {
    std::uint32_t value;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(value) : "l"(&word) : "memory");
    return static_cast<T>(value);
  } else {
    std::uint64_t value;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(value) : "l"(&word) : "memory");
    return static_cast<T>(value);
  }
}
template <typename T>
__device__ inline T load_relaxed(const T& word) {
  if constexpr (sizeof(T) == 4) {
    std::uint32_t value;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(value) : "l"(&word) : "memory");
    return static_cast<T>(value);
  } else {
    std::uint64_t value;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(&word) : "memory");
    return static_cast<T>(value);
  }
}
template <typename T>
__device__ inline void store_relaxed(T& word, T value) {
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(&word), "r"(value) : "memory");
  } else {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(&word), "l"(value) : "memory");
  }
}
template <typename T>
__device__ inline void store_release(T& word, T value) {
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(&word), "r"(value) : "memory");
  } else {
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(&word), "l"(value) : "memory");
  }
}
__device__ inline std::uint32_t fetch_add(std::uint32_t& word, std::uint32_t value) {
  return atomicAdd(&word, value);
}
__device__ inline std::uint64_t fetch_add(std::uint64_t& word, std::uint64_t value) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(&word), static_cast<unsigned long long>(value));
}
__device__ inline bool compare_exchange(std::uint32_t& word, std::uint32_t& expected, std::uint32_t value) {
  std::uint32_t found;
  asm volatile("atom.acq_rel.gpu.cas.b32 %0, [%1], %2, %3;"
               : "=r"(found)
               : "l"(&word), "r"(expected), "r"(value)
               : "memory");
  const bool exchanged = found == expected;
  expected = found;
  return exchanged;
}
__device__ inline bool compare_exchange(std::uint64_t& word, std::uint64_t& expected, std::uint64_t value) {
  std::uint64_t found;
  asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(found)
               : "l"(&word), "l"(expected), "l"(value)
               : "memory");
  const bool exchanged = found == expected;
  expected = found;
  return exchanged;
}

}  // namespace word

class CudaPlatform {
 public:
  // REQUIRES: made by all threads that will act together, which stay together.
  __device__ CudaPlatform()
      : mask_(__activemask()),
        lane_(lane_id()),
        leader_(first_lane(mask_)),
        rank_(lanes_in(mask_ & before(lane_))),
        size_(lanes_in(mask_)) {}

  __device__ std::uint32_t size() const { return size_; }
  __device__ std::uint32_t rank() const { return rank_; }
  __device__ bool is_leader() const { return rank_ == 0; }
  __device__ void sync() const { __syncwarp(mask_); }
  __device__ bool all(bool value) const { return __all_sync(mask_, value) != 0; }
  __device__ bool any(bool value) const { return __any_sync(mask_, value) != 0; }
  __device__ std::uint64_t broadcast(std::uint64_t value) const {
    return __shfl_sync(mask_, static_cast<unsigned long long>(value), leader_);
  }
  // How many lanes from the first on give true without one between them that does not.
  __device__ std::uint32_t leading(bool value) const {
    const std::uint32_t failing = mask_ & ~__ballot_sync(mask_, value);
    return failing == 0 ? size_ : __popc(mask_ & ((failing & (0U - failing)) - 1));
  }
  // How many lanes give true: all of them, and those before this one.
  __device__ std::uint32_t count(bool value) const { return __popc(__ballot_sync(mask_, value)); }
  __device__ std::uint32_t rank_among(bool value) const { return __popc(__ballot_sync(mask_, value) & before(lane_)); }
  // What the first of the lanes that give true has given; there must be one.
  __device__ std::uint64_t of_first(bool value, std::uint64_t given) const {
    const std::uint32_t giving = __ballot_sync(mask_, value);
    return __shfl_sync(mask_, static_cast<unsigned long long>(given), __ffs(static_cast<int>(giving)) - 1);
  }

  // Whether no lane before this one gave the same.
  __device__ bool is_first(std::uint32_t value) const { return (__match_any_sync(mask_, value) & before(lane_)) == 0; }
  // Each lane looks at the one before it, then at the one that that one looked at, twice as far every time: the lanes
  // of a group need not be neighbours. Those that have come to the leader stay there.
  __device__ Largest largest(std::uint32_t value) const {
    const std::uint32_t earlier = mask_ & before(lane_);
    const int previous = earlier == 0 ? leader_ : 31 - __clz(static_cast<int>(earlier));
    std::uint32_t so_far = value;
    int looked_at = previous;
    for (std::uint32_t reach = 1; reach < size_; reach *= 2) {
      const std::uint32_t other = __shfl_sync(mask_, so_far, looked_at);
      so_far = other > so_far ? other : so_far;
      looked_at = __shfl_sync(mask_, looked_at, looked_at);
    }
    const std::uint32_t before_this = __shfl_sync(mask_, so_far, previous);
    const int last = 31 - __clz(static_cast<int>(mask_));
    return {earlier == 0 ? 0 : before_this, __shfl_sync(mask_, so_far, last)};
  }

  template <typename T>
  __device__ T load_acquire(const T& word) const {
    return word::load_acquire(word);
  }
  template <typename T>
  __device__ T load_relaxed(const T& word) const {
    return word::load_relaxed(word);
  }
  template <typename T>
  __device__ void store_relaxed(T& word, T value) const {
    word::store_relaxed(word, value);
  }
  template <typename T>
  __device__ void store_release(T& word, T value) const {
    word::store_release(word, value);
  }
  template <typename T>
  __device__ T fetch_add(T& word, T value) const {
    return word::fetch_add(word, value);
  }
  template <typename T>
  __device__ bool compare_exchange(T& word, T& expected, T value) const {
    return word::compare_exchange(word, expected, value);
  }
  __device__ bool try_lock(std::uint32_t& word) const {
    std::uint32_t found;
    asm volatile("atom.acquire.gpu.cas.b32 %0, [%1], 0, 1;" : "=r"(found) : "l"(&word) : "memory");
    return found == 0;
  }

  __device__ void completed(Token*) const {}
  // For a lone thread a look takes as long as to let go and begin anew; others may have better things to do.
  __device__ std::uint32_t looks() const { return size_ == 1 ? 8 : 1; }
  // Nobody asks a GPU for them, and each would take a trip to memory.
  __device__ void count(std::uint64_t&) const {}

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
  // A release, if order_doorbells came just before: a second fence would take as long again.
  template <typename T>
  __device__ void store_ordered(T& word, T value) const {
    word::store_relaxed(word, value);
  }
  // One trip over the bus brings the status and what it covers. The result takes another, and is of no command that
  // kernels send: it is left out. (A load of all 16 bytes becomes two, one after the other.)
  __device__ Completion load_completion(const Completion& completion, bool) const {
    std::uint64_t words;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(words) : "l"(&completion.submission) : "memory");
    return {0, 0, static_cast<std::uint32_t>(words), static_cast<std::uint32_t>(words >> 32)};
  }

  // In nanoseconds.
  __device__ std::uint64_t now() const {
    std::uint64_t time = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  }
  // Longer each time, from begin_wait on.
  __device__ void begin_wait() { nap_ns_ = shortest_nap_ns; }
  __device__ void pause() {
    __nanosleep(nap_ns_);
    if (nap_ns_ < 1000) nap_ns_ *= 2;
  }

 protected:
  __device__ static constexpr std::uint32_t before(std::uint32_t lane) { return (1U << lane) - 1; }
  // Functions, since a host compiler looks at the initializers of constructors too.
  __device__ static int first_lane(std::uint32_t mask) { return __ffs(static_cast<int>(mask)) - 1; }
  __device__ static std::uint32_t lanes_in(std::uint32_t mask) { return __popc(mask); }
  // Asked of the hardware: which threads make up a warp depends on every dimension of a block.
  __device__ static std::uint32_t lane_id() {
    std::uint32_t lane = 0;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }

  const std::uint32_t mask_;
  const std::uint32_t lane_;
  const int leader_;
  const std::uint32_t rank_;
  const std::uint32_t size_;
  static constexpr std::uint32_t shortest_nap_ns = 20;
  std::uint32_t nap_ns_ = shortest_nap_ns;
};

}  // namespace penstock::nvme
