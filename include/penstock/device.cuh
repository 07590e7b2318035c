// Storage for CUDA kernels: a kernel reads and writes the stores of a set of queues (penstock/gpu_queues.h) by itself.
//
//   #include <penstock/device.cuh>
//
//   __global__ void look_up(penstock::device::Queues queues, const long long* rows, float4* out) {
//     const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
//     const penstock::device::IoResult read = queues.read({512ULL * rows[thread], 512}, out + 32 * thread);
//     if (!read.ok()) …   // nothing was written to `out` that should not be there
//   }
//
// For nvcc and NVRTC, C++17, without flags but the path to this header. The parameter is one address of 64 bits: what
// GpuQueues::handle gives, or any integer of that value. Kernels need up to 160 registers a thread: give those that are
// launched with more than 256 threads a block __launch_bounds__.
//
// Who calls. `read`, `write`, `visit`, `begin_read` and `finish` are each thread's own: threads have extents of their
// own, and those of a warp that come together share a doorbell and help each other to copy. A thread whose extent has
// no bytes only helps. `…_warp` and `…_block` are called by all threads of a warp or a block together, with the same
// extent and memory; the result is the same in all of them, and the bytes are there for all of them.
//
// What can go wrong is in the result (IoStatus), in every thread for its own extent; null memory is told before all
// else. No call waits for ever: not longer than its timeout once a queue has room, however many commands it takes, and
// if a queue makes no room for the set's stall time it is given up by all. A timeout of 0 is the set's.
// Threads that call together wait together: the shortest of their timeouts counts for all of them. Other threads are
// never kept out while one waits.
//
// Memory may be of any kind: global, shared, or, but for `…_warp` and `…_block`, the thread's own. Copies are fastest
// if it and the extent's length are multiples of 16 bytes; others go byte by byte. Extents begin and end with blocks of
// their store (512 bytes unless the program chose others), or end with its window.
//
// Writes are done when the store has taken them: later reads of the set find them, and Store::commit by the program
// makes them last. Those of different threads, and the pieces of `write_warp` and `write_block`, end in any order. One
// that timed out may still be carried out, now or later, with the bytes that it was given.
//
// Thread safety: any number of threads of any number of kernels. Lifetime: the set must be open while a kernel that
// uses it runs (penstock/gpu_queues.h says how to end one).
#pragma once

#if !defined(__CUDACC__)
#error "penstock/device.cuh is for kernels: include it in files that nvcc or NVRTC compiles (.cu)"
#endif

#include "penstock/cuda_platform.cuh"
#include "penstock/queue_set.h"

namespace penstock::device {

// The platform of queue_set.h: the active threads of a warp.
class WarpPlatform : public nvme::CudaPlatform {
 public:
  // Each lane's copy, of so many bytes or none.
  __device__ void copy(unsigned char* to, const unsigned char* from, std::uint32_t bytes) const {
    // Memory of a thread's own means something else in every thread.
    const bool is_own = bytes != 0 && (__isLocal(to) != 0 || __isLocal(from) != 0);
    if (any(is_own)) return copy_share(to, from, bytes, 0, 1);
    const std::uint32_t copying = __ballot_sync(mask_, bytes != 0);
    if (copying == 0xffffffff &&
        __all_sync(mask_, bytes == __shfl_sync(mask_, bytes, 0) && in_sixteens(to, from, bytes))) {
      return copy_all(to, from, bytes);
    }
    for (std::uint32_t left = copying; left != 0; left &= left - 1) {
      const int lane = __ffs(static_cast<int>(left)) - 1;
      copy_share(of(to, lane), of(from, lane), __shfl_sync(mask_, bytes, lane), rank_, size_);
    }
  }

  // Tells the program, in pinned memory.
  __device__ void note(std::uint32_t& word) const { *const_cast<volatile std::uint32_t*>(&word) = 1; }
  // Different in most threads.
  __device__ std::uint32_t spread() const { return (warp_number() * 32 + lane_) * 2654435769U >> 7; }
  // By multiprocessor first, then by warp: those of a multiprocessor meet on few queues, and few warps on each.
  __device__ static std::uint32_t warp_number() {
    std::uint32_t processor = 0;
    std::uint32_t processors = 0;
    std::uint32_t warp = 0;
    asm("mov.u32 %0, %%smid;" : "=r"(processor));
    asm("mov.u32 %0, %%nsmid;" : "=r"(processors));
    asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
    return warp * processors + processor;
  }

 private:
  static constexpr std::uint32_t ahead = 8;  // loads on their way: each takes more than a microsecond

  template <typename T>
  __device__ T* of(T* pointer, int lane) const {
    return reinterpret_cast<T*>(__shfl_sync(mask_, reinterpret_cast<unsigned long long>(pointer), lane));
  }
  __device__ static bool in_sixteens(const void* to, const void* from, std::uint32_t bytes) {
    return ((reinterpret_cast<unsigned long long>(to) | reinterpret_cast<unsigned long long>(from) | bytes) & 15) == 0;
  }
  // Never from a cache: the server wrote it a moment ago.
  __device__ static uint4 load(const uint4* from) {
    uint4 value;
    asm volatile("ld.volatile.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(from));
    return value;
  }

  // One copy by `lanes` of which this is number `rank`.
  __device__ static void copy_share(unsigned char* to, const unsigned char* from, std::uint32_t bytes,
                                    std::uint32_t rank, std::uint32_t lanes) {
    if (!in_sixteens(to, from, bytes)) {
      for (std::uint32_t i = rank; i < bytes; i += lanes) to[i] = *const_cast<const volatile unsigned char*>(from + i);
      return;
    }
    const auto* const source = reinterpret_cast<const uint4*>(from);
    auto* const target = reinterpret_cast<uint4*>(to);
    const std::uint32_t count = bytes / 16;
    for (std::uint32_t base = rank; base < count; base += lanes * ahead) {
      uint4 values[ahead] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < ahead; ++i) {
        if (base + i * lanes < count) values[i] = load(source + base + i * lanes);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < ahead; ++i) {
        if (base + i * lanes < count) target[base + i * lanes] = values[i];
      }
    }
  }
  // As many bytes for each of 32 lanes: one long copy, in which loads of several lanes are on their way together.
  __device__ static void copy_all(unsigned char* to, const unsigned char* from, std::uint32_t bytes) {
    const std::uint32_t each = bytes / 16;
    const std::uint32_t lane = lane_id();
    for (std::uint32_t base = 0; base < 32 * each; base += 32 * ahead) {
      uint4 values[ahead] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < ahead; ++i) {
        const std::uint32_t at = base + i * 32 + lane;
        const auto source = __shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(from), at / each);
        if (at < 32 * each) values[i] = load(reinterpret_cast<const uint4*>(source) + at % each);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < ahead; ++i) {
        const std::uint32_t at = base + i * 32 + lane;
        const auto target = __shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(to), at / each);
        if (at < 32 * each) reinterpret_cast<uint4*>(target)[at % each] = values[i];
      }
    }
  }
};

class Queues {
 public:
  Queues() = default;  // no set: every call ends with IoStatus::wrong_layout
  PENSTOCK_ANYWHERE Queues(QueueSet* set) : set_(set) {}
  PENSTOCK_ANYWHERE explicit Queues(std::uint64_t handle) : set_(reinterpret_cast<QueueSet*>(handle)) {}

  __device__ IoResult read(const Extent& extent, void* to, std::uint64_t timeout_ns = 0) const {
    return with_io([&](Io& io) { return io.read(extent, to, io.deadline_after(timeout_ns)); });
  }
  __device__ IoResult write(const Extent& extent, const void* from, std::uint64_t timeout_ns = 0) const {
    return with_io([&](Io& io) { return io.write(extent, from, io.deadline_after(timeout_ns)); });
  }
  // Without a copy: calls use(const unsigned char* bytes, bool ok) in all threads that came together, when those of
  // each have arrived in pinned memory or have failed to; `ok` is false in those that have none. If no thread has an
  // extent that could be read, or the set is stopped, `use` is not called: the result says why. The bytes stay until
  // `use` returns; read what is needed of them, as each load goes over the bus. `use` must not call this set. REQUIRES:
  // at most place_bytes() at a time, else IoStatus::out_of_window.
  template <typename Use>
  __device__ IoResult visit(const Extent& extent, Use use, std::uint64_t timeout_ns = 0) const {
    return with_io([&](Io& io) {
      const bool is_long = extent.bytes > set_->place_bytes;
      const IoResult result = io.visit(is_long ? Extent{} : extent, io.deadline_after(timeout_ns), use);
      return is_long ? IoResult{IoStatus::out_of_window} : result;
    });
  }

  // Reading ahead: begin, compute, finish.
  //
  //   Pending next = queues.begin_read(extent_of(0));
  //   for (unsigned i = 0; i < count; ++i) {
  //     Pending now = std::move(next);                     // NVRTC: static_cast<Pending&&>(next)
  //     if (i + 1 < count) next = queues.begin_read(extent_of(i + 1));
  //     if (!queues.finish(now, to).ok()) …
  //   }
  //
  // A read of more than place_bytes(), or for which no place was left, begins only in `finish`; so no number of reads
  // that were begun keeps others from going on. Each must be finished once, by any thread of the kernel. With null
  // memory it is dropped, which succeeds whatever became of it. Where nothing is pending `finish` says so
  // (IoStatus::nothing_pending): for one that was finished, moved elsewhere, or begun before GpuQueues::reset.
  __device__ Pending begin_read(const Extent& extent) const {
    Pending pending;
    pending.result = with_io([&](Io& io) {
      pending = io.begin_read(extent);
      return pending.result;
    });
    return pending;
  }
  __device__ IoResult finish(Pending& pending, void* to, std::uint64_t timeout_ns = 0) const {
    return with_io([&](Io& io) { return io.finish(pending, to, io.deadline_after(timeout_ns)); });
  }

  __device__ IoResult read_warp(const Extent& extent, void* to, std::uint64_t timeout_ns = 0) const {
    auto* const bytes = static_cast<unsigned char*>(to);
    return by_warp(extent, timeout_ns, [&](Io& io, const Extent& piece, std::uint64_t done, std::uint64_t deadline) {
      return io.read(piece, bytes == nullptr ? nullptr : bytes + done, deadline);
    });
  }
  __device__ IoResult write_warp(const Extent& extent, const void* from, std::uint64_t timeout_ns = 0) const {
    const auto* const bytes = static_cast<const unsigned char*>(from);
    return by_warp(extent, timeout_ns, [&](Io& io, const Extent& piece, std::uint64_t done, std::uint64_t deadline) {
      return io.write(piece, bytes == nullptr ? nullptr : bytes + done, deadline);
    });
  }
  __device__ IoResult read_block(const Extent& extent, void* to, std::uint64_t timeout_ns = 0) const {
    auto* const bytes = static_cast<unsigned char*>(to);
    return by_block(extent, timeout_ns, [&](Io& io, const Extent& piece, std::uint64_t done, std::uint64_t deadline) {
      return io.read(piece, bytes == nullptr ? nullptr : bytes + done, deadline);
    });
  }
  __device__ IoResult write_block(const Extent& extent, const void* from, std::uint64_t timeout_ns = 0) const {
    const auto* const bytes = static_cast<const unsigned char*>(from);
    return by_block(extent, timeout_ns, [&](Io& io, const Extent& piece, std::uint64_t done, std::uint64_t deadline) {
      return io.write(piece, bytes == nullptr ? nullptr : bytes + done, deadline);
    });
  }

  // Whether the program wants kernels to end; for those that run as long as the program does.
  __device__ bool is_closed() const {
    return !fits() ||
           nvme::word::load_acquire(set_->queues[0].poison) == static_cast<std::uint32_t>(nvme::Poison::deleted);
  }
  // REQUIRES of what follows: a set of this layout, as every result says.
  __device__ std::uint32_t place_bytes() const { return set_->place_bytes; }
  // Where its window ends, as an offset of the store.
  __device__ std::uint64_t size_bytes(std::uint32_t store = 0) const { return set_->stores[store].end; }
  __device__ std::uint32_t block_bytes(std::uint32_t store = 0) const { return set_->stores[store].block_bytes; }

 private:
  using Io = QueueSetIo<WarpPlatform>;

  __device__ bool fits() const { return set_ != nullptr && set_->layout == layout_version; }

  template <typename Transfer>
  __device__ IoResult with_io(Transfer transfer) const {
    if (set_ == nullptr) return {IoStatus::wrong_layout};
    const QueueSet set = *set_;  // all of it on its way at once
    if (set.layout != layout_version) return {IoStatus::wrong_layout};
    WarpPlatform platform;
    // The leader's: a warp may be moved while it asks for its number.
    const std::uint64_t number = platform.broadcast(WarpPlatform::warp_number());
    Io io(set, platform, static_cast<std::uint32_t>(number) % set.queue_count);
    return transfer(io);
  }

  // Pieces of an extent, one a place: those from number `first` on, every `step`th. All threads of the warp go round
  // equally often, to help each other.
  template <typename Transfer>
  __device__ IoResult by_pieces(const Extent& extent, std::uint64_t first, std::uint64_t step, std::uint64_t timeout_ns,
                                Transfer transfer) const {
    IoResult result;
    const std::uint64_t deadline =
        deadline_after(WarpPlatform().now(), timeout_ns != 0 ? timeout_ns : set_->timeout_ns);
    const std::uint64_t piece_bytes = set_->place_bytes;
    const std::uint64_t pieces = (extent.bytes + piece_bytes - 1) / piece_bytes;
    for (std::uint64_t round = 0; round * step < pieces; ++round) {
      const std::uint64_t done = (round * step + first) * piece_bytes;
      Extent piece{extent.offset + done, done < extent.bytes && result.ok() ? extent.bytes - done : 0, extent.store};
      if (piece.bytes > piece_bytes) piece.bytes = piece_bytes;
      const IoResult one = with_io([&](Io& io) { return transfer(io, piece, done, deadline); });
      if (piece.bytes != 0) result = one;
    }
    return result;
  }
  template <typename Transfer>
  __device__ IoResult by_warp(const Extent& extent, std::uint64_t timeout_ns, Transfer transfer) const {
    if (!fits()) return {IoStatus::wrong_layout};
    const WarpPlatform warp;
    const IoResult own = by_pieces(extent, warp.rank(), warp.size(), timeout_ns, transfer);
    warp.sync();
    const std::uint64_t packed = std::uint64_t{own.field} << 32 | static_cast<std::uint32_t>(own.status);
    return warp.any(!own.ok()) ? unpack(warp.of_first(!own.ok(), packed)) : own;
  }
  template <typename Transfer>
  __device__ IoResult by_block(const Extent& extent, std::uint64_t timeout_ns, Transfer transfer) const {
    if (!fits()) return {IoStatus::wrong_layout};
    __shared__ unsigned long long first_failure;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    if (thread == 0) first_failure = 0;
    __syncthreads();
    const IoResult own = by_pieces(extent, piece_of(thread, threads), threads, timeout_ns, transfer);
    const unsigned long long packed =
        static_cast<unsigned long long>(own.field) << 32 | static_cast<unsigned>(own.status);
    if (!own.ok()) atomicCAS(&first_failure, 0ULL, packed);
    __syncthreads();
    const IoResult result = unpack(first_failure);
    __syncthreads();  // before the next call begins anew
    return result;
  }
  // Pieces go to all warps before a warp gets its second: 32 threads copy each. The last warp may have fewer.
  __device__ static unsigned piece_of(unsigned thread, unsigned threads) {
    const unsigned whole_warps = threads / 32;
    const unsigned in_last = threads % 32;
    const unsigned warp = thread / 32;
    const unsigned lane = thread % 32;
    if (lane < in_last) return lane * (whole_warps + 1) + warp;
    return in_last * (whole_warps + 1) + (lane - in_last) * whole_warps + warp;
  }
  __device__ static IoResult unpack(std::uint64_t packed) {
    return {static_cast<IoStatus>(packed & 0xffffffff), static_cast<std::uint32_t>(packed >> 32)};
  }

  QueueSet* set_ = nullptr;
};
static_assert(sizeof(Queues) == sizeof(std::uint64_t), "one parameter of 64 bits");

}  // namespace penstock::device
