// Lane: one worker. It has a Queue for each engine in use, its own staging memory and statistics; nothing on its data
// path is locked or shared with other lanes.
//
// A lane is run by a thread of its own (run), by the caller of a small synchronous request (drive), or by whoever
// submits to it and waits (try_start, try_step): then nothing is handed from thread to thread.
//
// Invariants:
//  1. Every operation given to a Queue occupies a Flight until it comes back. The cookie names flight and generation.
//  2. A Part leaves its lane exactly once, when none of its flights is left; flights that don't come home within the
//     grace become orphans: they belong to no part, and keep the Buffers that they may touch, and their stores.
//  3. A lane with orphans never ends; it is retired, and another takes its place.
//
// Thread safety: post, attend, close, prepare, has_staging, is_ready, is_unprepared, try_start, try_step, take_care and
// busy from any thread; the rest is the worker's, whoever that is at the time. Lifetime: shared by its thread, the
// LaneSet and the requests that may have to wake it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "core/cut.h"
#include "core/environment.h"
#include "core/request.h"
#include "core/staged_window.h"
#include "core/staging.h"
#include "cuda/copy_queue.h"

namespace penstock::core {

enum class Runner : std::uint8_t {
  own_thread,
  one_caller,  // a synchronous request: queues that work inside submit
  callers,     // whoever waits
};

struct LaneSettings {
  Runner runner = Runner::own_thread;
  std::uint32_t depth = 64;
  std::uint32_t threads = 32;  // for engines that block
  std::uint64_t staging_bytes = 8 << 20;
  std::uint64_t bytes_in_flight = 32 << 20;
  std::uint64_t least_staged_bytes = 8 << 20;  // in flight on the way through staging memory
};

class Lane {
 public:
  // `on_stuck` is called once, on the lane's thread, when operations were abandoned: true if another lane took over.
  Lane(std::shared_ptr<Environment> environment, const LaneSettings& settings, std::function<bool()> on_stuck);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Hands over a part; false if the lane takes no more.
  bool post(Part& part);
  // Makes the lane look at its requests' stop codes soon.
  void attend();
  // Makes what copies to and from the GPU need, as soon as no stream waits for us; `left` is counted up, and down, and
  // woken, when that is done or can't be.
  void prepare(cuda::Device& gpu, std::shared_ptr<std::atomic<std::uint32_t>> left);
  // Takes no more, ends every request with Code::closed, and ends when nothing is in flight.
  void close();

  Runner runner() const { return settings_.runner; }
  // Takes it now, if the budget has room for it.
  bool has_staging() { return staging().ok(); }
  // Whether copies were made ready: its staging memory need not be registered any more.
  bool is_ready() const { return ready_.load(std::memory_order_relaxed); }
  // Whether preparing may do what it has not: it was never asked to, or the budget had no room.
  bool is_unprepared() const { return unprepared_.load(std::memory_order_relaxed); }

  // The thread's whole life.
  void run();
  // Makes what copies to or from the GPU need, if it is not there. Code::would_deadlock: a stream waits for us, and it
  // can't be made meanwhile.
  Status get_ready(cuda::Device& gpu, cuda::Toward toward);
  // Works on one part until its request has no part of this lane left.
  void drive(Part& part);
  // Starts a part of one piece here and now, unless another thread is at work or there is no room.
  bool try_start(Part& part, const std::shared_ptr<Request>& request);
  // Works until something has ended or the time has come, unless another thread is at work already.
  bool try_step(TimePoint until);
  // Called now and then: works a little if nobody has since the last call.
  void take_care();
  // REQUIRES: nobody works on it.
  bool has_orphans() const { return orphans_ != 0; }
  // Whether requests or orphans are left; may be out of date.
  bool busy() const { return busy_.load(std::memory_order_relaxed); }
  // Works until everything has ended or the time has come; says whether it has. REQUIRES: close() was called.
  bool finish(TimePoint until);

 private:
  enum class Phase : std::uint8_t {
    transfer,     // the one and only operation of a piece, or its continuation
    lock_block,   // waits for another writer of the block
    read_block,   // reads the block around an edge
    write_block,  // writes it back
    flush,
  };
  // A piece of a range on its way.
  struct Flight {
    Part* part = nullptr;         // null: free, or an orphan
    StoreEntry* entry = nullptr;  // that serves it
    cuda::Device* gpu = nullptr;  // whose memory `user` is; null: the host's
    std::byte* user = nullptr;    // the caller's memory: `length` bytes
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
    std::uint64_t weight_bytes = 0;  // what it counts towards the lane's limit: as much as one chunk on a local disk
    std::uint64_t lead = 0;          // bytes of the operation before `offset`
    std::uint64_t moved = 0;         // bytes of the operation that are there, from its start
    std::uint64_t span_bytes = 0;    // of the whole operation: lead, length and what alignment adds
    RouteBytes routes{};             // of the piece's own bytes
    StagingArena::Block staging;
    engine::Op op;  // as given to the queue last
    TimePoint submitted;
    TimePoint retry_at;
    // An orphan's: its store, the Buffer that it may still touch, if that is one's, and how many bytes of any memory.
    std::shared_ptr<StoreEntry> kept;
    HeldMemory::Holder held;
    std::uint64_t quarantined_bytes = 0;
    std::uint32_t generation = 0;
    std::uint32_t range = 0;
    Phase phase = Phase::transfer;
    Reason reason = Reason::in_memory;
    std::uint8_t attempts = 0;
    bool in_queue = false;  // given to the engine and not yet back
    bool copying = false;   // between staging memory and the GPU's
    bool orphan = false;
    bool holds_block = false;  // in the store's BlockLocks
    bool fills_slot = false;   // of a GPU's bytes, from the page cache, while poll lasts
    bool in_window = false;    // of those that come past the page cache
  };
  // The lane's copies to and from one GPU.
  struct GpuCopies {
    cuda::Device* gpu = nullptr;
    std::unique_ptr<cuda::CopyQueue> to_device;
    std::unique_ptr<cuda::CopyQueue> to_host;

    std::unique_ptr<cuda::CopyQueue>& toward(cuda::Toward end) {
      return end == cuda::Toward::device ? to_device : to_host;
    }
  };
  struct EngineQueue {
    std::unique_ptr<engine::Queue> queue;
    std::vector<engine::Op> batch;  // to be given to the queue; what it did not take stays
    std::uint32_t in_queue = 0;
  };
  enum class State : std::uint32_t { working, idle, polling };

  // The loop (lane.cc).
  void step(TimePoint until);
  bool finished() const;
  void accept_mail(TimePoint now);
  void accept(Part& part, TimePoint now);
  void submit_batches();
  void collect(TimePoint until);
  std::size_t collect_from_engines(TimePoint until);
  void sleep_idle(TimePoint until);
  std::size_t poll_queue(std::size_t engine, TimePoint until);
  void wake();
  bool has_mail() const;
  TimePoint stalls_at(TimePoint last_progress) const;
  void look_after_all(TimePoint now);
  void look_after(Part& part, TimePoint now);
  void withdraw(Part& part, TimePoint now);
  void abandon(Part& part);
  void settle(Part& part);
  void leave(Part& part);
  void ask_servers(Part& part);
  void wake_waiters();
  void release_resources();
  TimePoint next_time_to_look(TimePoint now) const;

  // Parts that have work to cut, in turn (lane.cc).
  void push_cutting(Part& part);
  void pop_cutting();
  void remove_cutting(Part& part);

  // Copies between staging memory and GPUs (copying.cc).
  GpuCopies& copies_of(cuda::Device& gpu);
  Result<std::unique_ptr<cuda::CopyQueue>> make_copies(cuda::Device& gpu, cuda::Toward toward);
  void copy(std::uint32_t index, cuda::Toward toward);
  void on_copied(const cuda::CopyDone& done, TimePoint now);
  std::size_t collect_copies();
  void issue_copies(bool all);
  std::size_t copies_added() const;
  void wait_for_copies(TimePoint until);
  void watch_streams(TimePoint now);
  void prepare_gpus(TimePoint now);

  // Cutting (cutting.cc).
  enum class CutResult : std::uint8_t { cut, blocked, put_off, exhausted };
  void cut_work(TimePoint now);
  CutResult cut_next(Part& part, TimePoint now);
  CutResult cut_edge(Part& part, TimePoint now);
  CutResult cut_flush(Part& part, TimePoint now);
  CutResult put_off(Part& part, TimePoint now);
  bool next_unit(Part& part);
  void advance(Part& part, std::uint64_t bytes);
  void plan_unit(Part& part);
  CutResult cut_straight(Part& part, StoreEntry& entry, std::uint64_t length, TimePoint now);
  CutResult cut_from_host(Part& part, StoreEntry& entry, const Rest& rest, Cut piece, TimePoint now);
  // `around_device`: as if no engine reached GPU memory by itself.
  Residency plan_window_at(Part& part, StoreEntry& entry, std::uint64_t offset, std::uint64_t length,
                           bool around_device = false);
  bool plan_around_device(Part& part, StoreEntry& entry, const Rest& rest);
  Residency residency_of(Part& part, StoreEntry& entry, std::uint64_t offset, std::uint64_t length);
  static bool goes_through_window(const Part& part, const Span& span);
  CutRules cut_rules(const Part& part, const StoreEntry& entry, const Span& span) const;
  bool may_be_buffered(const Request& request, const StoreEntry& entry, const Span& span) const;
  std::uint32_t start(Part& part, StoreEntry& entry, const Cut& piece, const StagingArena::Block& block);
  // `cause`, here and below: where more is known than a code and a number say.
  void fail_unit(Part& part, Code code, const Error* cause = nullptr);

  // Operations and their ends (transfer.cc).
  void begin(std::uint32_t index, TimePoint now);
  void send(std::uint32_t index, TimePoint now);
  void on_done(std::size_t engine, const engine::Done& done, TimePoint now);
  void on_moved(std::uint32_t index, std::uint64_t bytes, Route route, TimePoint now);
  void on_failed(std::uint32_t index, const engine::Done& done, TimePoint now);
  void on_orphan_home(std::uint32_t index);
  void begin_block(std::uint32_t index, TimePoint now);
  void write_back_block(std::uint32_t index, TimePoint now);
  void write_block(std::uint32_t index);
  void retry_later(std::uint32_t index, TimePoint at);
  void send_due_retries(TimePoint now);
  void finish_piece(std::uint32_t index);
  void account_piece(std::uint32_t index);
  void fail_piece(std::uint32_t index, Code code, std::int32_t system_error, const Error* cause = nullptr);
  // For the books of a part: where there is no memory for them, its request ends with that.
  template <typename Keep>
  void or_stop(Part& part, Keep keep) {
    try {
      keep();
    } catch (const std::bad_alloc&) {
      part.hold->stop(Code::out_of_memory);
    }
  }
  void add_failure(Part& part, Failure failure, const Error* cause = nullptr);
  void free_flight(std::uint32_t index);
  void leave_window(Flight& flight);
  void adapt_depth(Duration latency, TimePoint now);
  // Any thread.
  Result<StagingArena*> staging();
  // For one piece that takes so many bytes of it.
  Result<StagingArena*> staging_for(std::uint64_t bytes);
  engine::MemoryKey staging_key(std::size_t engine);
  EngineQueue* queue_of(std::size_t engine);
  Status make_queue(std::size_t engine);
  static std::uint32_t store_of(const Flight& flight);
  // Whether what the device can't take may go through the page cache.
  bool may_buffer(const Flight& flight) const;

  const std::shared_ptr<Environment> environment_;
  const LaneSettings settings_;
  const std::function<bool()> on_stuck_;
  const std::shared_ptr<LaneStatistics> statistics_;
  LaneTrace* const trace_;  // null: nobody wants to know

  // Shared with other threads.
  struct ToPrepare {
    cuda::Device* gpu;
    std::shared_ptr<std::atomic<std::uint32_t>> left;
  };
  std::mutex worker_mutex_;  // held by whoever works, where that changes
  std::mutex idle_mutex_;
  std::condition_variable idle_;
  std::mutex prepare_mutex_;
  std::vector<ToPrepare> to_prepare_;
  std::atomic<bool> unprepared_{true};
  std::atomic<bool> ready_{false};
  std::mutex staging_mutex_;  // held while staging memory is made
  std::unique_ptr<StagingArena> staging_;
  std::atomic<StagingArena*> made_staging_{nullptr};  // the same, once it is there
  TimePoint staging_warned_;
  std::atomic<Part*> mailbox_{nullptr};  // newest first; a mark when closed
  std::atomic<engine::Queue*> polled_{nullptr};
  std::atomic<State> state_{State::working};
  std::atomic<bool> busy_{false};
  std::atomic<bool> unattended_{false};
  std::atomic<bool> attention_{false};
  std::atomic<bool> closing_{false};

  // The worker's own.
  std::vector<Part*> active_;
  std::vector<std::shared_ptr<Request>> to_wake_;  // ended; someone sleeps until then
  Part* cutting_first_ = nullptr;
  Part* cutting_last_ = nullptr;
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> retries_;
  std::uint64_t bytes_in_flight_ = 0;
  std::uint64_t bytes_allowed_;
  StagedWindow window_;  // of what goes past the page cache to or from GPUs
  TimePoint depth_changed_;
  TimePoint next_look_ = TimePoint::max();
  Code queue_failure_ = Code::engine_unavailable;  // why the last one that could not be made was not
  std::vector<EngineQueue> queues_;                // by engine
  std::size_t poll_first_ = 0;
  std::vector<engine::Done> done_;
  std::vector<std::optional<engine::MemoryKey>> staging_keys_;  // by engine
  std::vector<GpuCopies> gpus_;
  std::vector<cuda::CopyDone> copied_;
  TimePoint copies_moved_;  // when a copy last ended, or the first of those pending began
  Duration between_looks_ = std::chrono::microseconds(20);  // at copies that are on their way
  double copy_seconds_ = 0;                                 // waited for copies with nothing else to do, in all
  std::uint32_t copying_ = 0;                               // flights
  std::uint32_t slots_filling_ = 0;                         // from the page cache
  std::uint32_t orphans_ = 0;
  std::uint32_t held_back_ = 0;  // operations that the kernel has not seen yet
  bool mailbox_closed_ = false;
  bool retired_ = false;
  bool tried_to_retire_ = false;
  bool some_ended_ = false;  // requests, since waiters were last woken
};

}  // namespace penstock::core
