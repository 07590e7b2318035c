// MemoryMap: which memory is attached to which engines. One table for all engines, searched once per request.
//
// What is attached because a request needed it (attach_on_use) is known by its allocation, and the longest unused makes
// room: only memory that can't be replaced unseen, Buffers and CUDA's, is attached so.
//
// Thread safety: any thread. A lookup never waits for an attach in progress.
// Lifetime: host memory must be detached before it is freed: a freed address that is mapped again would otherwise meet
// the old registration. Buffers that are attached by their Context, or on use, detach themselves, and what else is
// attached of a Buffer is held until it is detached. GPU memory is known by the number of its allocation as well, so
// that other memory at the same address is not taken for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "engine/engine.h"
#include "memory/allocation.h"

namespace penstock::core {

// Memory that engines know. Shared by the table and by requests that use what was attached for them.
struct Attachment {
  ~Attachment();

  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  std::vector<std::unique_ptr<engine::Attached>> by_engine;
  bool is_known = false;                 // to some engine
  const cuda::Driver* driver = nullptr;  // null: not a GPU's
  std::optional<std::uint64_t> buffer_id;
  std::shared_ptr<const memory::Allocation> held;  // the Buffer that it lies in, if it was attached explicitly
  bool on_use = false;
  std::uint64_t charged_bytes = 0;  // to `budget`
  std::shared_ptr<memory::Budget> budget;
  mutable std::atomic<std::uint64_t> last_used{0};

  bool covers(const std::byte* data, std::size_t size) const {
    return data >= begin && data < end && size <= static_cast<std::size_t>(end - data);
  }
  // Whether it was freed.
  bool is_gone() const { return driver != nullptr && driver->buffer_id(begin) != buffer_id; }
};

class MemoryMap {
 public:
  using Entry = std::shared_ptr<const Attachment>;
  // Sorted by address; entries don't overlap.
  using Snapshot = std::vector<std::shared_ptr<Attachment>>;

  // How many stay attached that were attached on use.
  static constexpr std::ptrdiff_t on_use_most = 64;

  // Null entries of `engines` are skipped, and those of which `is_used` says no; it is asked before memory is attached
  // to one. Memory of the host that is attached on use is charged to `pinned`, which may be null.
  explicit MemoryMap(std::vector<engine::Engine*> engines, std::function<bool(std::size_t engine)> is_used = nullptr,
                     std::shared_ptr<memory::Budget> pinned = nullptr)
      : engines_(std::move(engines)), is_used_(std::move(is_used)), pinned_(std::move(pinned)) {}

  // Code::invalid_argument for memory that is none: not mapped, past the last address, of another device than it says,
  // or attached already.
  Status attach(Region memory);
  // To those engines that need to know it. Null: some of it is attached already. The caller sees to it that memory of
  // the host is detached before it is freed.
  Entry attach_on_use(Region allocation);
  // REQUIRES: no request in flight uses the memory.
  Status detach(Region memory);

  // Whether nothing is attached that the caller could know of; takes no lock.
  bool empty() const { return empty_.load(std::memory_order_relaxed); }
  std::shared_ptr<const Snapshot> snapshot() const;
  // What covers all of [data, data + size), or null. CUDA is asked about GPU memory that an engine knows.
  static Entry find(const Snapshot& snapshot, const std::byte* data, std::size_t size);

 private:
  using Wants = std::function<bool(const engine::Description& description)>;

  static std::shared_ptr<Attachment> make(Region memory);
  void attach_to_engines(Attachment& entry, Region memory, const Wants& wants);
  // Where the memory is, entries that are gone make place. False if others are there.
  static bool make_place(Snapshot& next, Region memory);
  static void insert(Snapshot& next, std::shared_ptr<Attachment> entry);
  void publish(std::shared_ptr<const Snapshot> next);

  const std::vector<engine::Engine*> engines_;
  const std::function<bool(std::size_t)> is_used_;
  const std::shared_ptr<memory::Budget> pinned_;  // shared with what is charged to it, which may be there longer
  std::mutex change_mutex_;                       // held while engines are asked
  mutable std::mutex snapshot_mutex_;             // held for a moment
  std::shared_ptr<const Snapshot> snapshot_ = std::make_shared<Snapshot>();
  std::atomic<bool> empty_{true};
};

}  // namespace penstock::core
