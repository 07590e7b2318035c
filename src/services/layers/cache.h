// Cache: the groups of Layers, the slots that they take turns in, and the thread that loads ahead.
//
// A group is absent, loading or loaded. All states change under one mutex; requests are submitted and waited for
// without it. What an `acquire` waits for it starts itself, so that the thread's wake-up costs it nothing. It returns
// when the group is there: a stream that waited for the load could have copies behind that which stand in the load's
// way.
//
// Invariants:
//   1. A slot has at most one group, and a group at most one slot: no group is there twice, or loaded twice at a time.
//   2. A group that is held, waited for or pinned, or whose slot a stream has not passed, keeps its slot.
//   3. Slots are cut once; nothing is allocated in their memory's domain later.
//
// Thread safety: any thread. Lifetime: the Context must outlive it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "penstock/layers.h"
#include "services/layers/layout.h"
#include "services/layers/policy.h"
#include "services/layers/slots.h"
#include "services/models/file_stores.h"

namespace penstock::layers {

class Cache {
 public:
  static Result<std::unique_ptr<Cache>> open(const Context& context, const Model& model,
                                             std::vector<TensorGroup> groups, const LayersOptions& options);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const std::vector<TensorGroup>& infos() const { return infos_; }
  std::optional<std::size_t> find(std::string_view name) const;
  std::uint64_t size_bytes(std::size_t group) const;
  bool in_child() const { return fork_guard_.in_child(); }

  Result<std::span<const Region>> acquire(std::size_t group);
  Status release(std::size_t group, CudaStream stream);
  Status hint(std::span<const std::size_t> groups);
  Status pin(std::size_t group, bool pinned);
  LayersReport report() const;
  Status check_unheld() const;
  // Ends loads and acquires, and waits for streams; later calls fail with Code::closed. Whether
  // an operation may still write to the memory.
  bool shut_down();

 private:
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr auto look_again = std::chrono::microseconds(50);  // whether a stream has passed

  // An acquire, which closing waits for. REQUIRES: mutex_, at its begin and end.
  class Inside {
   public:
    explicit Inside(Cache& cache) : cache_(cache) { ++cache_.inside_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      if (--cache_.inside_ == 0) cache_.changed_.notify_all();
    }

   private:
    Cache& cache_;
  };

  enum class State : std::uint8_t { absent, loading, loaded };
  struct Group {
    Layout layout;
    std::vector<Region> tensors;  // where they are, unless it is absent
    std::uint32_t slot_class = 0;
    std::uint32_t rank = 0;     // in its class
    std::uint32_t slot = none;  // none: absent
    State state = State::absent;
    Ticket ticket;               // while it is loading; empty until it was submitted
    std::optional<Error> error;  // of the last load, until it is told
    std::uint32_t hint = none;   // its first place in the hints
    std::uint32_t waiting = 0;   // acquires; it keeps its slot for them
    GroupReport report;
  };
  struct Released {
    void* stream = nullptr;
    CudaMark mark;
  };
  struct Slot {
    std::uint64_t offset = 0;
    std::uint32_t group = none;
    bool is_lost = false;
    std::vector<Released> released;  // that streams have not passed, as far as known
  };
  struct Class {
    std::uint64_t slot_bytes = 0;
    std::uint32_t first_slot = 0;
    std::uint32_t slots = 0;
    std::uint32_t lost = 0;
    std::uint32_t pinned = 0;
    std::uint32_t demanded = 0;  // acquires that wait for an absent group of it
    Turns turns;
  };
  enum class Room : std::uint8_t { found, later, none };  // `later`: when a stream has passed
  // Shared with callbacks of requests, which may come after the Cache.
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    bool has_rung = false;

    void ring();
  };

  Cache(const Context& context, const Model& model, std::vector<TensorGroup> groups, const LayersOptions& options);
  Status read_indexes(const Model& model);
  Status lay_out_all(const Model& model);
  Status cut();
  Status start();

  Status check(std::size_t group) const;
  void note(std::uint32_t group);
  void drop_hint(std::uint32_t group);
  double distance_of(std::uint32_t group) const;
  bool has_passed(Slot& slot);
  // Takes a slot for an absent group; the caller launches it.
  Room take_slot(std::uint32_t group, const Wish& wish);
  // Takes the slot from its group.
  void vacate(Group& group);
  // Submits the load of a group that has a slot. Called without the lock, which it takes.
  void launch(std::uint32_t group);
  Result<Ticket> submit(const Group& group, const Region& memory);
  // Ends the load of a group if its request has.
  void settle(std::uint32_t group);
  void settle_all();
  void end_loads();
  void finish(std::uint32_t group, const Report& report);
  Error error_of(const Report& report) const;
  // One hold less.
  void let_go(Group& group);
  // What could be loaded ahead now, the first first; classes that have no room are left out.
  std::uint32_t next_wish(const std::vector<bool>& full) const;
  // A group to load ahead, for which it took a slot; none: there is none now.
  std::uint32_t next_ahead(bool& waits_for_stream);
  // Waits until a group is loaded.
  Status bring(std::unique_lock<std::mutex>& lock, std::uint32_t group, TimePoint deadline);
  Status wait_for_load(std::unique_lock<std::mutex>& lock, const Ticket& ticket, TimePoint deadline);
  Error no_slot(const Class& slots) const;
  // Wakes the thread that loads ahead, if there may be something to do.
  void notice();
  void keep();
  // Returns whether something waits for a stream.
  bool load_ahead();

  const Context context_;
  const LayersOptions options_;
  const std::vector<TensorGroup> infos_;
  std::unordered_map<std::string_view, std::size_t> by_name_;
  const double half_life_;
  ForkGuard fork_guard_;
  std::mutex stores_mutex_;  // never taken before mutex_ is let go
  models::FileStores stores_;
  Buffer allocated_;  // none where memory was given
  Region memory_;

  std::mutex closing_;               // taken before mutex_
  mutable std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;  // a load has begun or ended, or a group was released
  std::vector<Uses> uses_;           // by group
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
  std::vector<Class> classes_;
  std::vector<Candidate> candidates_;
  std::vector<std::uint32_t> loading_;
  std::vector<std::uint32_t> hints_;  // none: it was acquired
  std::size_t first_hint_ = 0;        // the first that was not
  std::uint64_t now_ = 0;             // acquires so far
  std::uint64_t loading_bytes_ = 0;
  std::size_t absent_ = 0;
  std::size_t pins_ = 0;
  bool is_closing_ = false;
  std::uint32_t inside_ = 0;  // acquires

  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  std::thread keeper_;
};

}  // namespace penstock::layers
