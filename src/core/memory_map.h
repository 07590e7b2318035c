// MemoryMap: which memory is attached to which engines. One table for all engines, searched once per request.
//
// What is attached because a request needed it (attach_on_use) is known by its allocation, and the longest unused makes
// room: only memory that can't be replaced unseen, Buffers and CUDA's, is attached so. What leaves the table while
// requests use it ends with the last of them; if the same memory is attached meanwhile, it shares what engines know: no
// engine is told twice of one allocation.
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

// Memory that engines know.
struct Attachment {
  ~Attachment();
  void refund();

  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  std::vector<std::shared_ptr<engine::Attached>> by_engine;  // shared with what is of the same memory
  bool is_known = false;                                     // to some engine
  const cuda::Driver* driver = nullptr;                      // null: not a GPU's
  std::optional<std::uint64_t> buffer_id;
  std::shared_ptr<const memory::Allocation> held;  // the Buffer that it lies in, if it was attached explicitly
  bool on_use = false;
  std::vector<std::shared_ptr<memory::Budget>> budgets;  // that are charged with all of it
  mutable std::atomic<std::uint64_t> last_used{0};
  mutable std::atomic<std::uint32_t> users{0};
  std::atomic<bool> has_left{false};  // the table: nobody may use it who does not yet

  bool covers(const std::byte* data, std::size_t size) const {
    return data >= begin && data < end && size <= static_cast<std::size_t>(end - data);
  }
  // Whether it was freed.
  bool is_gone() const { return driver != nullptr && driver->buffer_id(begin) != buffer_id; }
};

// What was attached on use, in use by a request or an operation.
class AttachmentUse {
 public:
  AttachmentUse() = default;
  explicit AttachmentUse(std::shared_ptr<const Attachment> entry) : entry_(std::move(entry)) { begin(); }
  AttachmentUse(const AttachmentUse& other) : entry_(other.entry_) { begin(); }
  AttachmentUse& operator=(AttachmentUse other) noexcept {
    entry_.swap(other.entry_);
    return *this;
  }
  ~AttachmentUse() {
    if (entry_) entry_->users.fetch_sub(1, std::memory_order_seq_cst);
  }

  // False if it left the table before: then it may end at any time.
  bool is_valid() const { return entry_ && !entry_->has_left.load(std::memory_order_seq_cst); }
  const Attachment* get() const { return entry_.get(); }

 private:
  void begin() const {
    if (entry_) entry_->users.fetch_add(1, std::memory_order_seq_cst);
  }

  std::shared_ptr<const Attachment> entry_;
};

class MemoryMap {
 public:
  using Entry = std::shared_ptr<const Attachment>;
  // Sorted by address; entries don't overlap.
  using Snapshot = std::vector<std::shared_ptr<Attachment>>;

  // How many stay attached that were attached on use.
  static constexpr std::ptrdiff_t on_use_most = 64;

  // Null entries of `engines` are skipped, and those of which `is_used` says no; it is asked before memory is attached
  // to one. Memory of the host that is attached on use is charged to all of `budgets`.
  explicit MemoryMap(std::vector<engine::Engine*> engines, std::function<bool(std::size_t engine)> is_used = nullptr,
                     std::vector<std::shared_ptr<memory::Budget>> budgets = {})
      : engines_(std::move(engines)), is_used_(std::move(is_used)), budgets_(std::move(budgets)) {}

  // Code::invalid_argument for memory that is none: not mapped, past the last address, of another device than it says,
  // or attached already.
  Status attach(Region memory);
  // To those engines that need to know it. Null: some of it is attached already, or there is no room for it. The caller
  // sees to it that memory of the host is detached before it is freed.
  Entry attach_on_use(Region allocation);
  // Detaches what holds Buffers, so that nothing holds itself. REQUIRES: no request is in flight.
  void let_go_of_buffers();
  // REQUIRES: no request in flight uses the memory.
  Status detach(Region memory);

  // Whether nothing is attached that the caller could know of; takes no lock.
  bool empty() const { return empty_.load(std::memory_order_relaxed); }
  std::shared_ptr<const Snapshot> snapshot() const;
  // What covers all of [data, data + size), or null. CUDA is asked about GPU memory that an engine knows.
  static Entry find(const Snapshot& snapshot, const std::byte* data, std::size_t size);
  // The same in the present snapshot; takes no lock where this thread found it last.
  Entry find(const std::byte* data, std::size_t size) const;

 private:
  using Wants = std::function<bool(const engine::Description& description)>;

  static std::shared_ptr<Attachment> make(Region memory);
  static bool is_usable(const Attachment& entry);
  void attach_to_engines(Attachment& entry, Region memory, const Wants& wants);
  std::shared_ptr<engine::Attached> known_to(std::size_t engine, const Attachment& memory) const;
  bool charge(Attachment& entry, Snapshot& next);
  // Of the table, or of a copy of it. What nobody uses is ended.
  void retire(Snapshot& next, Snapshot::iterator entry);
  static Snapshot::iterator longest_unused(Snapshot& next);
  // Where the memory is, entries make place that are gone, or that were attached on use and lie within it. False if
  // others are there.
  bool make_place(Snapshot& next, Region memory);
  static void insert(Snapshot& next, std::shared_ptr<Attachment> entry);
  void publish(std::shared_ptr<const Snapshot> next);
  static std::uint64_t new_version();

  const std::vector<engine::Engine*> engines_;
  const std::function<bool(std::size_t)> is_used_;
  const std::vector<std::shared_ptr<memory::Budget>> budgets_;  // shared with what is charged to them
  std::mutex change_mutex_;                                     // held while engines are asked
  std::vector<std::weak_ptr<const Attachment>> retired_;        // guarded by it: not in the table, and in use
  mutable std::mutex snapshot_mutex_;                           // held for a moment
  std::shared_ptr<const Snapshot> snapshot_ = std::make_shared<Snapshot>();
  std::atomic<bool> empty_{true};
  std::atomic<std::uint64_t> version_{new_version()};  // of the snapshot; changed after it
};

}  // namespace penstock::core
