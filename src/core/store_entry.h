// StoreEntry: an open store as core knows it: the engine that serves it and why, and what was learnt since.
//
// Thread safety: any thread. Lifetime: shared by the user's Store handles and the requests in flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/once.h"
#include "client/backend.h"
#include "core/block_locks.h"
#include "core/caching.h"
#include "core/calls.h"
#include "core/flow.h"
#include "core/planner.h"
#include "core/replacing.h"
#include "engine/engine.h"

namespace penstock::core {

struct Environment;

// What there is to say of a store, also when it is closed: a request keeps this for its report, and not the store.
struct StoreFacts {
  std::string name;
  std::size_t engine = 0;     // that serves it: its index in the table
  std::string engine_reason;  // why that one
  bool from_host = true;      // it can be reached from the host
  bool is_made = false;       // by a function
  // Known once someone wanted to reach it from a GPU: the engine that moves bytes there by itself, and why that one, or
  // why there is none.
  std::optional<std::size_t> device_engine = std::nullopt;
  std::string device_reason = {};
};

class StoreEntry final : public client::OpenStore, public std::enable_shared_from_this<StoreEntry> {
 public:
  // Null for null, for a Store that is not open, and for one of another backend.
  static StoreEntry* of(const Store* store) {
    client::OpenStore* const open = store != nullptr ? client::Access::of(*store).get() : nullptr;
    return open != nullptr && open->is_of(family) ? static_cast<StoreEntry*>(open) : nullptr;
  }

  // Chooses an engine, opens the store with it.
  static Result<std::shared_ptr<StoreEntry>> open(const Environment& environment, std::string_view name,
                                                  const OpenOptions& options);

  // A store without a name, of an engine of the table.
  static std::shared_ptr<StoreEntry> adopt(const Environment& environment, std::size_t engine,
                                           std::unique_ptr<engine::Store> store);

  ~StoreEntry() override;

  // If it is not called, the destructor closes the store and does not wait for a server.
  void close_and_wait() override;
  Result<std::uint64_t> size_bytes() override;
  Result<Identity> identity() override;
  void await_writers() override { store_->await_writers(); }
  std::optional<std::uint64_t> cached_bytes(std::uint64_t offset, std::uint64_t length) const override;
  Result<View> view() override;
  Status commit(bool durable) override;
  Status abort() override;
  // What `ask(engine::Store&)` returns, a Result or a Status. Where a server may have to be asked, that is
  // Code::timed_out by the deadline at the latest.
  template <typename Ask>
  auto ask(Ask ask, TimePoint deadline = TimePoint::max()) -> decltype(ask(std::declval<engine::Store&>())) {
    if (!is_remote(info().locality)) return ask(*store_);
    return calls_->run(engine(), info().name, deadline,
                       [self = shared_from_this(), ask = std::move(ask)] { return ask(*self->store_); });
  }

  engine::Store& store() const { return *store_; }
  const StoreInfo& info() const override { return store_->info(); }
  const OpenOptions& options() const { return name_.options; }
  std::shared_ptr<const StoreFacts> facts() const { return facts_; }
  std::size_t engine() const { return facts_->engine; }
  const std::string& engine_reason() const { return facts_->engine_reason; }

  // The same store, opened by an engine that moves bytes between it and GPU memory by itself (it may be this one), or
  // null: its facts tell why. Opened on the first call.
  StoreEntry* for_device(const Environment& environment);
  // Whether it can be reached from the host at all.
  bool from_host() const { return facts_->from_host; }
  // Which memory of the host its operations can name.
  engine::HostReach host_reach() const { return host_reach_; }

  // Others write to it, elsewhere than where it is read.
  bool is_growing() const { return name_.options.growing; }

  // Offsets and lengths of direct transfers are multiples of this. Writes to files keep whole pages apart from
  // buffered edges: the kernel drops cached pages by the page.
  std::uint32_t alignment(Direction direction) const;

  // Whether it is known to have bytes up to there.
  bool has_up_to(std::uint64_t end) const { return end <= size_bytes_.load(std::memory_order_relaxed); }
  // Whether a range up to `end` exists; asks again if it did not at opening.
  Status check_end(std::uint64_t end, TimePoint deadline = TimePoint::max());
  // After a write that may have made the store longer.
  void grown_to(std::uint64_t end);

  bool direct() const { return info().direct && !direct_refused_.load(std::memory_order_relaxed); }
  // Whether what was read of it last came past the page cache.
  bool seems_cold() const { return seems_cold_.load(std::memory_order_relaxed); }
  void note_path(engine::Path path) {
    const bool is_cold = path == engine::Path::direct;
    if (is_cold != seems_cold()) seems_cold_.store(is_cold, std::memory_order_relaxed);
  }
  void refuse_direct() { direct_refused_.store(true, std::memory_order_relaxed); }

  // How much of it may be in flight past the page cache.
  Flow& flow(Direction direction) const { return direction == Direction::read ? *read_flow_ : *write_flow_; }
  // What it likes best of an operation; 0: it does not say.
  std::uint64_t operation_bytes() const;

  BlockLocks& blocks() { return blocks_; }
  // Whether it stays in the page cache when it is read or written.
  bool fits_page_cache(const Environment& environment, TimePoint now);
  CachedFile& cached_file() { return cached_file_; }
  const CachedFile& cached_file() const { return cached_file_; }
  // After a commit: the completion thread removes what was replaced.
  void let_go_of_replaced() const;
  // Null where writes are in place.
  Replacing* replacing() { return options().access == Access::replace ? &replacing_ : nullptr; }
  // From a few pages, where the kernel does not tell what of a stretch is cached but does of a page. Nothing where it
  // tells neither.
  struct Guess {
    std::optional<std::uint64_t> missing;  // a byte that is not there, if one was found; its page is brought in
  };
  std::optional<Guess> guess_residency(std::uint64_t offset, std::uint64_t length);
  // What a timed sample says, where nothing else does.
  Residency sample_residency(std::uint64_t offset, std::uint64_t length);

 private:
  static constexpr client::StoreFamily family{};

  // How a store was asked for.
  struct Name {
    std::string scheme;
    std::string name;
    OpenOptions options;
  };

  struct Closing;
  static void let_go(const Environment& environment, std::size_t engine, std::unique_ptr<engine::Store> store);

  StoreEntry(const Environment& environment, Name name, EnginePlan plan, std::unique_ptr<engine::Store> store);
  void close(TimePoint wait_until);
  std::shared_ptr<StoreEntry> open_for_device(const Environment& environment);

  const std::weak_ptr<const Environment> environment_;
  const std::shared_ptr<const engine::Table> engines_;  // shared: the engine must outlive its store
  const std::shared_ptr<Calls> calls_;                  // shared: closing may outlive the Context
  const Name name_;
  std::unique_ptr<engine::Store> store_;
  std::shared_ptr<Closing> closing_;         // shared with its operation; null: closing does not wait
  const std::shared_ptr<StoreFacts> facts_;  // shared with requests, which may outlive the store
  const engine::HostReach host_reach_;
  const std::uint32_t read_alignment_;
  const std::uint32_t write_alignment_;
  std::atomic<std::uint64_t> size_bytes_;
  std::atomic<bool> direct_refused_{false};
  std::atomic<bool> seems_cold_{false};
  const std::shared_ptr<Flow> read_flow_;  // shared by the stores of one device
  const std::shared_ptr<Flow> write_flow_;
  CachedFile cached_file_;
  BlockLocks blocks_;
  Replacing replacing_;
  Once device_once_;
  std::shared_ptr<StoreEntry> device_;
};

}  // namespace penstock::core
