// StoreEntry: an open store as core knows it: the engine that serves it and why, and what was learnt since.
//
// Thread safety: any thread. Lifetime: shared by the user's Store handles and the requests in flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "core/block_locks.h"
#include "core/planner.h"
#include "engine/engine.h"

namespace penstock::core {

struct Environment;

class StoreEntry {
 public:
  // Chooses an engine, opens the store with it.
  static Result<std::shared_ptr<StoreEntry>> open(const Environment& environment, std::string_view name,
                                                  const OpenOptions& options);

  engine::Store& store() const { return *store_; }
  const StoreInfo& info() const { return store_->info(); }
  std::size_t engine() const { return engine_; }  // its index in the table
  const std::string& engine_reason() const { return engine_reason_; }

  // The same store, opened by an engine that moves bytes between it and GPU memory by itself (it may be this one), or
  // null: device_reason tells why. Opened on the first call.
  StoreEntry* for_device(const Environment& environment);
  const std::string& device_reason() const { return device_reason_; }
  // Whether it can be reached from the host at all.
  bool from_host() const { return from_host_; }

  // Offsets and lengths of direct transfers are multiples of this. Writes to files keep whole pages apart from
  // buffered edges: the kernel drops cached pages by the page.
  std::uint32_t alignment(Direction direction) const;

  // Whether a range up to `end` exists; asks again if it did not at opening.
  Status check_end(std::uint64_t end);
  // After a write that may have made the store longer.
  void grown_to(std::uint64_t end);

  bool direct() const { return info().direct && !direct_refused_.load(std::memory_order_relaxed); }
  void refuse_direct() { direct_refused_.store(true, std::memory_order_relaxed); }

  BlockLocks& blocks() { return blocks_; }
  // What a timed sample said, where the kernel does not tell what is cached: for one request at a time.
  Residency sample_residency(std::uint64_t offset, std::uint64_t length);

 private:
  // How a store was asked for.
  struct Name {
    std::string scheme;
    std::string name;
    OpenOptions options;
  };

  StoreEntry(const Environment& environment, Name name, EnginePlan plan, std::unique_ptr<engine::Store> store);
  std::shared_ptr<StoreEntry> open_for_device(const Environment& environment);

  const std::shared_ptr<const engine::Table> engines_;  // shared: the engine must outlive its store
  const Name name_;
  const std::size_t engine_;
  const bool from_host_;
  const std::string engine_reason_;
  const std::unique_ptr<engine::Store> store_;
  const std::uint32_t read_alignment_;
  const std::uint32_t write_alignment_;
  std::atomic<std::uint64_t> size_bytes_;
  std::atomic<bool> direct_refused_{false};
  BlockLocks blocks_;
  std::once_flag device_once_;
  std::shared_ptr<StoreEntry> device_;
  std::string device_reason_;
};

}  // namespace penstock::core
