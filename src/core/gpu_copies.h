// GpuCopies: a lane's copies between its staging memory and GPUs. Storage fills one slot while a copy engine empties
// another.
//
// Thread safety: ask_to_prepare from any thread; the rest is the lane's. Lifetime: its lane's, which is leaked rather
// than ended while copies are pending.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "core/device_memory.h"
#include "core/staging.h"
#include "core/stream_gate.h"
#include "cuda/copy_queue.h"

namespace penstock::core {

class GpuCopies {
 public:
  using Left = std::shared_ptr<std::atomic<std::uint32_t>>;

  // `depth`: the most that may be pending. `stream_seconds`: as Deadlines has it.
  GpuCopies(LaneStaging& staging, StreamGate& streams, DeviceMemory& memory, std::uint32_t depth,
            double stream_seconds);

  // Makes the lane prepare for a GPU when it next looks; `left` is counted up, and down, and woken, when that is done
  // or can't be.
  void ask_to_prepare(cuda::Device& gpu, Left left);
  // Does what was asked.
  void prepare_asked();
  // Makes what copies to or from the GPU need, if it is not there.
  Status get_ready(cuda::Device& gpu, cuda::Toward toward) {
    return of(gpu).toward(toward) ? Status() : make_ready(gpu, toward);
  }
  // Staging memory that is an engine's own, which the GPU gets to know too. REQUIRES: the other get_ready was ok.
  Status get_ready(cuda::Device& gpu, StagingArena& arena) {
    return staging_.is_shared(arena) ? Status() : make_ready(gpu, arena);
  }
  // Memory of the GPU for one copy at a time: what follows a copy on the stream is done with it before the next begins.
  // REQUIRES: get_ready was ok, and `bytes` is the same each time.
  Result<std::byte*> scratch(cuda::Device& gpu, std::uint64_t bytes);
  // Where the GPU itself reaches bytes of staging memory; null: it does not. REQUIRES: get_ready was ok.
  const std::byte* over_the_bus(const std::byte* staged) const {
    const auto offset = staging_.host_to_device();
    return offset ? staged + *offset : nullptr;
  }
  // Spent by get_ready so far: what is made once is neither the disk's time nor the bus's.
  const Spent& spent() const { return spent_; }

  // REQUIRES: get_ready was ok for it, and fewer than `depth` are pending.
  void add(cuda::Device& gpu, cuda::Toward toward, const cuda::Copy& copy);
  // Gives the GPUs what was added, where it is worth it, or all.
  void issue(bool all);
  std::uint32_t pending() const { return pending_; }
  std::uint64_t pending_bytes() const;
  // Whether it ever had to do with one.
  bool has_gpus() const { return !gpus_.empty(); }
  // Whether all that is pending ends within microseconds.
  bool are_short() const { return short_bytes_ <= short_bytes_most; }
  // Those that no GPU has yet.
  std::size_t added() const;
  // Calls `on_copied(CopyDone, now)` for those that have ended; returns how many there were.
  template <typename OnCopied>
  std::size_t collect(OnCopied on_copied) {
    std::size_t found = 0;
    for (OfGpu& of : gpus_) {
      for (cuda::CopyQueue* queue : {of.to_device.get(), of.to_host.get()}) {
        if (queue == nullptr || queue->pending() == 0) continue;
        const std::size_t count = queue->collect(done_);
        if (count == 0) continue;
        found += count;
        note_moved(count);
        for (std::size_t i = 0; i < count; ++i) on_copied(done_[i], moved_);
      }
    }
    return found;
  }
  // When one last ended, or the first of those pending began.
  TimePoint last_moved() const { return moved_; }
  // How long to wait before looking again.
  Duration between_looks() const { return between_looks_; }
  // A stream that waits for us may stand in the hardware's queue before our copies; then neither ever moves. Where
  // copies have made no progress for too long, requests in stream order are ended.
  void watch_streams(TimePoint now);
  void clear() { gpus_.clear(); }

 private:
  static constexpr std::uint64_t short_bytes_most = 64 << 10;

  struct ToPrepare {
    cuda::Device* gpu = nullptr;
    Left left;
  };
  struct OfGpu {
    cuda::Device* gpu = nullptr;
    std::unique_ptr<cuda::CopyQueue> to_device;
    std::unique_ptr<cuda::CopyQueue> to_host;
    std::unique_ptr<memory::Allocation> scratch;
    TimePoint scratch_again;  // not before then: there was no room for it

    std::unique_ptr<cuda::CopyQueue>& toward(cuda::Toward end) {
      return end == cuda::Toward::device ? to_device : to_host;
    }
  };

  OfGpu& of(cuda::Device& gpu) {
    for (OfGpu& one : gpus_) {
      if (one.gpu == &gpu) return one;
    }
    return gpus_.emplace_back(OfGpu{.gpu = &gpu});
  }
  Status make_ready(cuda::Device& gpu, cuda::Toward toward);
  Status make_ready(cuda::Device& gpu, StagingArena& arena);
  Result<std::unique_ptr<cuda::CopyQueue>> make(cuda::Device& gpu, cuda::Toward toward);
  void prepare(cuda::Device& gpu, cuda::Toward toward);
  void note_moved(std::size_t count);

  LaneStaging& staging_;
  StreamGate& streams_;
  DeviceMemory& memory_;
  const std::uint32_t depth_;
  const double stream_seconds_;
  std::mutex mutex_;
  std::vector<ToPrepare> to_prepare_;  // guarded by mutex_
  std::vector<OfGpu> gpus_;
  std::vector<cuda::CopyDone> done_;
  std::uint32_t pending_ = 0;
  std::uint64_t short_bytes_ = 0;  // added since nothing was pending
  TimePoint moved_;
  Duration between_looks_ = std::chrono::microseconds(20);
  Spent spent_;
};

}  // namespace penstock::core
