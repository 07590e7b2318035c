// MemoryMap: which memory is attached to which engines. One cache for all engines, searched once per request.
//
// Thread safety: any thread. A lookup never waits for an attach in progress.
// Lifetime: host memory must be detached before it is freed: a freed address that is mapped again would otherwise meet
// the old registration. Buffers that are attached by their Context detach themselves, and what else is attached of a
// Buffer is held until it is detached. GPU memory is known by the number of its allocation as well, so that other
// memory at the same address is not taken for it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "engine/engine.h"
#include "memory/allocation.h"

namespace penstock::core {

class MemoryMap {
 public:
  struct Entry {
    const std::byte* begin;
    const std::byte* end;
    std::vector<engine::MemoryKey> keys;   // by engine
    const cuda::Driver* driver = nullptr;  // null: not a GPU's
    std::optional<std::uint64_t> buffer_id = std::nullopt;
    std::shared_ptr<const memory::Allocation> held = nullptr;  // the Buffer that it lies in, if it does

    // Whether it was freed.
    bool is_gone() const { return driver != nullptr && driver->buffer_id(begin) != buffer_id; }
  };
  // Sorted by address; entries don't overlap.
  using Snapshot = std::vector<Entry>;

  // Null entries of `engines` are skipped, and those of which `is_used` says no; it is asked before memory is attached
  // to one.
  explicit MemoryMap(std::vector<engine::Engine*> engines, std::function<bool(std::size_t engine)> is_used = nullptr)
      : engines_(std::move(engines)), is_used_(std::move(is_used)) {}

  // Code::invalid_argument for memory that is none: not mapped, past the last address, of another device than it says,
  // or attached already.
  Status attach(Region memory);
  // REQUIRES: no request in flight uses the memory.
  Status detach(Region memory);

  // Whether nothing is attached that the caller could know of; takes no lock.
  bool empty() const { return empty_.load(std::memory_order_relaxed); }
  std::shared_ptr<const Snapshot> snapshot() const;
  // The entry that covers all of [data, data + size), or null. CUDA is asked about GPU memory that an engine has a key
  // for.
  static const Entry* find(const Snapshot& snapshot, const std::byte* data, std::size_t size);

 private:
  std::vector<engine::MemoryKey> attach_to_engines(Region memory);
  void detach_from_engines(const Entry& entry);
  void publish(std::shared_ptr<const Snapshot> next);

  const std::vector<engine::Engine*> engines_;
  const std::function<bool(std::size_t)> is_used_;
  std::mutex change_mutex_;            // held while engines are asked
  mutable std::mutex snapshot_mutex_;  // held for a moment
  std::shared_ptr<const Snapshot> snapshot_ = std::make_shared<Snapshot>();
  std::atomic<bool> empty_{true};
};

}  // namespace penstock::core
