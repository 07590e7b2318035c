// CopyQueue: one lane's copies between pinned memory and a GPU, in one direction, on a stream of ours.
//
// Copies are added one by one and given to the GPU in groups; a group has one event. Many small ones go by one kernel
// or one batched call instead of a call each. They end in the order in which they were added.
//
// The stream is non-blocking: it must not wait for the legacy null stream, which may wait for us. Other queues may use
// the same (StreamPool).
//
// The driver puts the work of all streams into a few hardware queues of each kind (CUDA_DEVICE_MAX_CONNECTIONS), where
// one that waits holds up those behind it, whatever their priorities. A stream that waits for us stands in the queues
// for computing. Kernels, batches and short copies to the device go there too; long copies, those from the device and
// those of several rows go to the copy engines. So while a stream waits for us, everything goes as one of these.
//
// Thread safety: one thread at a time. Lifetime: destroyed only when nothing is pending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/control_memory.h"
#include "cuda/driver.h"
#include "cuda/kernels.h"

namespace penstock::cuda {

enum class Toward : std::uint8_t { device, host };

struct Copy {
  std::byte* host = nullptr;    // pinned, or the call itself copies
  std::byte* device = nullptr;  // an address of the GPU's
  std::size_t bytes = 0;        // 0: only what `then` does
  std::uint64_t cookie = 0;
  // Called when the copy is on the stream, with `argument`: what it puts there ends with the copy.
  CuResult (*then)(CuStream stream, void* argument) = nullptr;
  void* argument = nullptr;
};

struct CopyDone {
  std::uint64_t cookie = 0;
  CuResult result = cu_success;
};

struct CopyQueueOptions {
  Toward toward = Toward::device;
  std::size_t depth = 64;                        // copies that may be pending
  std::optional<std::ptrdiff_t> host_to_device;  // what to add to a `host` address to get the GPU's; unset: no kernel
};

class CopyQueue {
 public:
  static Result<std::unique_ptr<CopyQueue>> create(Device& device, const CopyQueueOptions& options);
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // REQUIRES: fewer than `depth` are pending.
  void add(const Copy& copy);
  // Gives what was added to the GPU.
  void issue();
  // Those that have ended, at most as many as there is room for.
  std::size_t collect(std::span<CopyDone> done);

  std::size_t pending() const { return pending_; }
  std::size_t added() const { return pending_ - issued_; }
  std::size_t added_bytes() const { return added_bytes_; }
  std::uint64_t pending_bytes() const { return pending_bytes_; }
  Toward toward() const { return options_.toward; }
  const Device& device() const { return device_; }

 private:
  struct Group {
    CuEvent event = nullptr;
    std::size_t count = 0;
    CuResult result = cu_success;
    bool recorded = false;  // whether the event follows its copies
  };
  static constexpr std::size_t groups_most = 16;

  CopyQueue(Device& device, const CopyQueueOptions& options);
  // The place so many behind the oldest pending copy; at most as many as there are places.
  std::size_t place(std::size_t behind) const {
    const std::size_t at = first_ + behind;
    return at < ring_.size() ? at : at - ring_.size();
  }
  void record(Group& group);
  CuResult issue_copies(std::size_t first, std::size_t count);
  CuResult issue_small(std::size_t first, std::size_t count);
  CuResult issue_by_kernel(CuFunction kernel, std::size_t first, std::size_t count);
  CuResult issue_by_batch(std::size_t first, std::size_t count);
  CuResult issue_one(const Copy& copy);
  CuResult issue_alone(const Copy& copy);
  CuResult issue_by_copy_engine(const Copy& copy);

  Device& device_;
  const CopyQueueOptions options_;
  CuStream stream_ = nullptr;
  ControlMemory::Cell table_;  // of ScatterEntry, by place in the ring; empty: no kernel ever
  std::vector<Copy> ring_;     // of `depth`
  std::size_t first_ = 0;      // the oldest pending copy
  std::size_t pending_ = 0;    // added and not collected
  std::size_t issued_ = 0;     // of those: given to the GPU
  std::size_t added_bytes_ = 0;
  std::uint64_t pending_bytes_ = 0;
  std::vector<Group> groups_;  // a ring as well
  std::size_t first_group_ = 0;
  std::size_t group_count_ = 0;
  std::vector<CuDevicePtr> batch_to_;
  std::vector<CuDevicePtr> batch_from_;
  std::vector<std::size_t> batch_bytes_;
};

}  // namespace penstock::cuda
