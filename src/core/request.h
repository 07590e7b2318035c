// Request: what a caller asked for, shared by the lanes that work on it. It ends exactly once.
//
// The work is cut into Units at the start; lanes take units one by one, without a lock. Each lane keeps its own Part,
// so nothing is shared between lanes but the counter of units. The lane that leaves last concludes the request.
//
// Thread safety: as each member says. Lifetime: shared by tickets and by the lanes (Part::hold).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/small_array.h"
#include "client/backend.h"
#include "core/completion_thread.h"
#include "core/cut.h"
#include "core/held_memory.h"
#include "core/identity_query.h"
#include "core/memory_map.h"
#include "core/planner.h"
#include "core/spans.h"
#include "core/store_entry.h"
#include "core/survey.h"
#include "core/tally.h"
#include "cuda/copy_queue.h"
#include "cuda/stream_order.h"
#include "penstock/request.h"

namespace penstock::core {

struct Environment;
class Lane;
class Request;

// How the bytes of a span are made of what is stored.
struct TransformUse {
  Stored stored;
  bool is_for_gpu = false;  // that the memory is of
};

// The completion thread lets go of them: to free what a GPU knows may wait for the GPU, which a lane must not.
struct Transforms : CompletionThread::Action {
  std::vector<TransformUse> uses;

 private:
  void run() override {}
};

struct StoreUse {
  std::shared_ptr<StoreEntry> entry;        // until the request ends: who closes a store finds it closed then
  std::shared_ptr<const StoreFacts> facts;  // for the report
  std::uint64_t begin = UINT64_MAX;         // of the first byte that is asked for
  std::uint64_t end = 0;                    // of the last
  bool check_identity = false;
  bool stays_cached = false;  // with Cache::automatic: all that is read or written of it
  // That being so, which way long writes in place go, all of them: a page that is dirty while a direct write is in
  // flight beside it could stay in the page cache with old bytes. A file without a name has no readers that would bring
  // in such pages; there each unit goes its own way.
  Stays written = Stays::file;
  Identity before;
};

// The least that a lane takes at once: part of a long range, or several whole short ranges of one store, all
// in memory of the same device.
struct Unit {
  std::uint64_t begin = 0;                   // within the range, if there is only one
  std::uint64_t length = 0;                  // all bytes of the unit
  std::uint32_t first = 0;                   // range
  std::uint32_t count = 0;                   // of ranges
  Residency residency = Residency::unknown;  // before the request read there (Survey); some: also if ranges differ
  bool is_asked = false;                     // that is set, as Survey tells lanes
};

// An end of a write that fills no whole block.
struct Edge {
  std::uint32_t range = 0;
  std::uint64_t position = 0;  // within the range
  std::uint64_t length = 0;
};

// What is done to a request, in order. The last lane to finish one stage does the next ones alone.
enum class Stage : std::uint8_t {
  transfer,
  edges,  // of writes, through the page cache, when no direct write is in flight that could leave stale pages there
  flush,
  identities,  // of stores whose server has to be asked, and may not answer
};

// What a lane spent on a part.
struct LaneTime {
  TimePoint entered;
  double cpu_seconds_at_entry = 0;
  double copy_seconds_at_entry = 0;
  Spent made_ready_at_entry;  // what the lane had spent by then on what is made once
  double cpu_seconds = 0;
  double copy_seconds = 0;
  double wall_seconds = 0;
};

// One lane's share in a request. Only that lane touches it between post and the end, but for the atomics.
struct Part {
  Part* next_in_lane = nullptr;  // in its mailbox, then among those it works on
  Part* previous_in_lane = nullptr;
  std::shared_ptr<Request> hold;  // from post until the lane has left
  std::shared_ptr<Lane> lane;     // set before has_lanes(), then only read: cancelling wakes it

  // Where the lane is.
  std::uint32_t claimed = 0;      // units that are the lane's and not begun: from here
  std::uint32_t claimed_end = 0;  // to here
  Unit unit;                      // being cut; count 0: none
  std::uint32_t range = 0;        // of the unit
  std::uint64_t position = 0;     // within that range
  WindowPlan plan;                // of the unit
  std::optional<CutRules> rules;  // of the unit, for that plan
  Stays stays = Stays::no;        // of the unit, as far as it is not cached
  bool goes_straight = false;     // Path::device is the plan; what can't take it goes around
  bool plan_each_piece = false;   // the unit is neither wholly cached nor wholly not
  bool no_route = false;          // none that is allowed can carry the window
  bool exhausted = false;         // no more units
  bool takes_long_slot = false;   // the next piece, if it is cached
  bool was_left = false;          // to another, when the lane last looked
  Stage stage = Stage::transfer;
  std::vector<Edge> edges;  // put off to their stage
  std::uint32_t next_edge_part = 0;
  std::size_t next_edge = 0;
  std::uint32_t next_flush = 0;  // store
  std::uint32_t stores_flushed = 0;
  Part* next_in_list = nullptr;  // of those with something left to start
  bool in_list = false;
  std::uint32_t in_flight = 0;
  TimePoint last_progress;
  TimePoint grace_end = TimePoint::max();  // set when the request was stopped

  // What it has done.
  std::atomic<std::uint64_t> bytes{0};
  Tally<route_count> routes;
  Tally<reason_count> reasons;
  std::uint64_t extra_bytes = 0;
  std::uint64_t stored_bytes = 0;
  std::uint64_t made_bytes = 0;   // of those
  std::vector<Failure> failures;  // the first few
  std::uint64_t failure_count = 0;
  std::unique_ptr<Error> first_cause;  // of the first one, where more is known than its code and number say
  bool withdrawn = false;              // the request was stopped while this part had work
  bool abandoned = false;
  // What it brought into the page cache, and that is not to stay there; or what is to be brought there.
  std::vector<Stretch> afterwards;
  std::unique_ptr<LaneTime> time;  // null: of short requests nobody takes it

  // Whether its request was stopped, and the lane knows.
  bool is_stopped() const { return grace_end != TimePoint::max(); }
  // What takes memory: where there is none, its request ends with that.
  template <typename Action>
  void do_or_stop(Action action);
  // `cause`: where more is known than a code and a number say.
  void add_failure(Failure failure, const Error* cause = nullptr);
};

struct RequestSettings {
  engine::OpKind kind = engine::OpKind::read;  // not flush
  std::uint32_t lanes = 1;                     // the most that may work on it
  bool may_wait = true;                        // for writers of its stores; not where it is made by the gate's thread
  bool has_caller = false;                     // that waits for it, and may run it
  bool in_stream_order = false;                // the stream waits for it, or it for the stream, outside the lanes
  // Part of another request, whose bytes it moves between storage and memory from which they are copied to or from a
  // GPU (OrderedTransfer). That one was checked, is counted, and is what callers see.
  bool is_inner = false;
};

// As long as what allocators keep at hand: what few requests need lies behind pointers, here and in Part.
class Request final : public client::PendingRequest {
  struct Private {};

 public:
  static constexpr std::size_t failures_kept = 64;
  // Shorter requests are over before a file can be replaced under them; asking twice would cost more than the read.
  static constexpr std::uint64_t identity_checked_from_bytes = 1 << 20;
  // Where one lane moves all of it.
  static constexpr std::uint64_t one_lane_piece_bytes_min = 128 << 10;
  static constexpr std::uint64_t one_lane_piece_bytes_max = 256 << 10;

  // For create alone.
  Request(Private, std::shared_ptr<Environment> environment);
  ~Request() override;

  // Checks everything that can be checked before a byte moves.
  static Result<std::shared_ptr<Request>> create(const std::shared_ptr<Environment>& environment,
                                                 std::span<const Range> ranges, const RequestSettings& settings = {},
                                                 const RequestOptions& options = {});

  // One whose ranges are asked for when it begins: see ask_for_ranges.
  static std::shared_ptr<Request> create_late(const std::shared_ptr<Environment>& environment, Domain domain,
                                              RangeSource ranges, const RequestSettings& settings,
                                              const RequestOptions& options);
  // Whether all memory is there.
  static Status check_domain(std::span<const Range> ranges, Domain domain);
  // A write that was refused, or failed: files that it was for don't take another's name before it is repeated.
  static void note_unwritten(std::span<const Range> ranges);
  // When the stream has come to the request. Stops it where they are not right.
  void ask_for_ranges();
  bool asks_for_ranges() const { return rare_ && rare_->late != nullptr; }

  // When a request that begins then has to end.
  static TimePoint deadline_of(const Environment& environment, const RequestOptions& options, TimePoint begun);
  // As if it had begun then, which is earlier. Before any lane has it.
  void count_from(TimePoint earlier) {
    if (deadline != TimePoint::max()) deadline -= begun - earlier;
    begun = earlier;
  }

  // Fixed when it begins, but for the parts' contents.
  engine::OpKind kind = engine::OpKind::read;  // zero and deallocate have no memory
  Direction direction = Direction::read;       // towards the store: all kinds but read
  bool durable = false;
  Cache cache = Cache::automatic;
  RouteSet allowed = 0;
  std::uint64_t total_bytes = 0;
  TimePoint begun;
  TimePoint deadline = TimePoint::max();
  Spans spans;
  SmallArray<StoreUse> stores;
  std::unique_ptr<Transforms> transforms;  // null: there are none
  SmallArray<Unit> units;
  SmallArray<Part> parts;
  Survey survey;                             // of the units
  HeldMemory held;                           // let go of when the request ends
  std::vector<AttachmentUse> attachments;    // that were made on use; likewise, and before the memory
  std::unique_ptr<cuda::StreamOrder> order;  // set before any other thread knows the request
  bool has_gpu = false;                      // some memory is a GPU's
  bool needs_staging = false;                // and is not sure to be reached without
  // Where lanes keep something for such requests: always from this one on, modulo their number. Unset: in turn.
  std::optional<std::uint32_t> first_lane;

  // How its bytes are stored; null: as they are.
  const TransformUse* transform_of(const Span& span) const {
    return span.transform != 0 ? &transforms->uses[span.transform - 1] : nullptr;
  }
  // Whether what is read past the page cache is noted, and stays there when it is read again soon.
  bool reads_again_are_cached(const Span& span) const {
    const StoreUse& use = stores[span.store];
    return direction == Direction::read && cache == Cache::automatic && !use.stays_cached &&
           use.entry->cached_file().number != 0;
  }
  // That it takes in its store.
  std::uint64_t stored_bytes(const Span& span) const {
    return span.transform != 0 ? transforms->uses[span.transform - 1].stored.bytes : span.length;
  }
  // What was attached on use and an operation names, if that is so.
  AttachmentUse attachment_of(const engine::Attached* attached) const;
  // Where what a GPU's memory is staged for goes to.
  cuda::Toward staged_toward() const {
    return direction == Direction::read ? cuda::Toward::device : cuda::Toward::host;
  }
  // Whether an engine brings bytes of the store to the GPU by itself, wherever they go. Not so writes: ends that fill
  // no whole block are core's.
  bool reads_straight(const cuda::Device& gpu, StoreEntry& entry) const;
  std::uint64_t unit_bytes() const { return unit_bytes_; }
  bool has_more_units() const { return next_unit_.load(std::memory_order_relaxed) < units.size(); }
  // The next units, for whichever lane asks: indices from `begin` to `end`, the same when there are no more. One at a
  // time, so that all lanes together read a disk in order; several of a long range where long pieces are better than
  // order. (A disk that looks ahead gave 3.5 GB/s to lanes that took 4 MiB each, and 5 in order.)
  struct Claim {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
  };
  // For the lane of the part, which has staging memory for so much at once.
  Claim claim_units(const Part& part, std::uint64_t room_bytes = UINT64_MAX);
  // How the last window went is how the next one is expected to go.
  void expect(engine::Path path) {
    if (path != engine::Path::cached) give_up_long_slots();
    expected_.store(path, std::memory_order_relaxed);
  }
  // From the page cache to a GPU, by the lane of the first part alone (LongSlots), as long as all of it is cached.
  bool fills_long_slots() const {
    return may_fill_long_slots_.load(std::memory_order_relaxed) && expected() == engine::Path::cached;
  }
  bool fills_long_slots(const Part& part) const { return fills_long_slots() && &part == parts.begin(); }
  // Whether its units need not be looked at before they are read.
  bool assumes_cached() const { return is_on_caller_ && fills_long_slots(); }
  // REQUIRES: it fills, or did fill, long slots.
  cuda::Device& gpu_of_all() const { return *gpu_of_all_; }
  // Whether the part has nothing to do but wait: another fills long slots.
  bool is_left_to_another(const Part& part) const { return fills_long_slots() && &part != parts.begin(); }
  // For good.
  void give_up_long_slots();
  // In stream order, when the stream has come to the request: notes again what stores are like, since what came before
  // on the stream may have written to them. False if a server has not answered yet: call it again. One that does not
  // answer stops the request.
  bool note_identities_again();
  // For Stage::identities. `on_answer` is called by a thread that may outlive the request. Stops it where nobody can be
  // asked.
  void ask_servers(std::function<void()> on_answer);
  bool servers_answered() const { return asked() != nullptr && asked()->query->answered(); }
  // Asks the lanes to end the request with this code; the first reason stays.
  void stop(Code code);
  // The same, where more is known than the code says. REQUIRES: no lane has it, and nobody else calls this.
  void stop_because(Error cause);
  Code stop_code() const { return stop_code_.load(std::memory_order_seq_cst); }
  // Each lane calls it once when its part is over; true for the last one, which must then conclude.
  bool leave() { return parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // REQUIRES: every part has left. The stage to go on with, if there is one left to do.
  std::optional<Stage> next_stage(Stage done) const;
  // The lane that left last takes its part up again, for the next stage.
  void rejoin() { parts_left_.store(1, std::memory_order_relaxed); }
  // REQUIRES: every part has left. Adds up the parts and ends the request, which was over at `end`. True if someone
  // sleeps until then: call wake_waiters, at once or a little later. `self` is the request.
  [[nodiscard]] bool conclude(const std::shared_ptr<Request>& self, TimePoint end);
  void wake_waiters() const;
  // Ends a request that no lane has seen. REQUIRES: it was stopped.
  static void end_unstarted(const std::shared_ptr<Request>& request);
  // Ends a request whose bytes others than lanes have moved, and counted in its first part.
  static void end_without_lanes(const std::shared_ptr<Request>& request);

  // Wakes the next lanes that sleep and have a part of it. Each lane does so as soon as it is awake, so that all are
  // after a few wake-ups instead of one after the other.
  void wake_next_lanes();

  // Every part has its lane: they may be looked at. Before anything is posted.
  void lanes_are_set() { lanes_set_.store(true, std::memory_order_seq_cst); }
  bool has_lanes() const { return lanes_set_.load(std::memory_order_seq_cst); }
  // The parts from this one on were posted quietly.
  void parts_are_posted(std::uint32_t first) { next_to_wake_.store(first, std::memory_order_seq_cst); }
  // Whether one lane on the thread of its caller moves all of it as fast as several would, which had to wake up first.
  bool is_for_one_lane() const { return is_for_one_lane_; }
  // The GPU, if the thread of a synchronous caller is the best lane: the bytes go to one, and the first of them are in
  // memory already. Null: it is not.
  cuda::Device* gpu_for_caller() const;
  // The first part is the caller's, which fills long slots as long as what it reads is cached, and the only one. The
  // request does not end before the caller calls leave() too.
  void begin_on_caller(cuda::Device& gpu);
  // The other parts get lanes after all.
  void add_other_parts() { parts_left_.fetch_add(static_cast<std::uint32_t>(parts.size()) - 1); }

  // As RequestOptions::on_range has it, if someone wants to know.
  void range_moved(std::uint32_t range, std::uint64_t bytes) {
    if (left_) count_moved(range, bytes);
  }
  void range_failed(std::uint64_t range, Code code);

  bool has_callback() const { return callbacks_ != nullptr; }
  bool is_inner() const { return is_inner_; }
  // Called by the thread that ends the request, a lane most often; it throws nothing. Before any lane has it.
  void set_on_end(std::function<void()> call);
  Environment& environment() const { return *environment_; }
  const std::shared_ptr<Environment>& shared_environment() const { return environment_; }

  // Any thread.
  Outcome outcome() const { return outcome_.load(std::memory_order_acquire); }
  bool ended() const { return outcome() != Outcome::pending; }
  // Works on the request meanwhile, where nobody else does.
  bool wait_until(TimePoint time) const;
  // One step of the same; false where that can't be done.
  bool help_until(TimePoint time) const;
  bool is_run_by_callers() const;
  std::uint64_t bytes_done() const;
  Report report() const;
  // As Ticket::then.
  static void then(std::shared_ptr<Request> request, std::function<void()> call);
  // Stops the request and wakes its lanes; waits until it has ended, within reason.
  Outcome cancel();

  // For its Ticket. In a forked child a request that had not ended counts as cancelled.
  Outcome poll() override;
  std::uint64_t poll_bytes() override;
  bool wait(TimePoint until) override;
  bool wait_any(std::span<client::PendingRequest* const> requests, TimePoint until) override;
  Report make_report() override;
  void call_at_end(std::shared_ptr<client::PendingRequest> self, std::function<void()> call) override;
  void request_cancel() override;
  Outcome cancel_and_wait() override;

  // Its completion goes there. Before any lane has it.
  void complete_to(std::shared_ptr<client::CompletionPort> port, std::uint32_t place) {
    port_ = std::move(port);
    place_ = place;
  }

 private:
  struct Callbacks;
  // Ranges that are asked for when it begins.
  struct Late {
    RangeSource source;
    Domain domain;  // where their memory must be
  };
  struct Waiting;
  struct AnyWait;

  bool is_left_behind() const;
  void make_progress() const;
  void announce_to_any_wait();
  void wake_lanes() const;
  void call_waiting();
  void count_moved(std::uint32_t range, std::uint64_t bytes);
  engine::Path expected() const { return expected_.load(std::memory_order_relaxed); }
  std::uint32_t claimed_at_once(std::uint32_t next, std::uint64_t room_bytes) const;
  std::uint64_t share_of_rest(std::uint32_t next, std::uint64_t lanes) const;
  Claim claim_mixed(std::uint32_t wanted);
  const cuda::Device* decoding_gpu() const;
  class KnownMemory;
  struct KnownGpu;

  Status add_ranges(std::span<const Range> ranges);
  void reach_from_host(Span& span, const StoreEntry& entry, KnownMemory& known);
  bool hold(const MemoryMap::Entry& entry);
  void keep_whole_blocks(Span& span, const StoreEntry& entry) const;
  std::vector<std::uint32_t> add_stores(std::span<const Range> ranges, bool only_one);
  Status prepare_stores();
  // What stores that are only read are like, to be compared with what they are like at the end.
  Status note(const Identities& identities);
  Status note_first_identities();
  Status begin_query(std::function<void()> on_answer);
  const StoreEntry& asked_store() const;
  IdentityQuery::Stores checked_stores() const;
  Status reach_gpu(Span& span, std::size_t index, Domain domain, KnownGpu& known);
  Status find_gpu(const Span& span, std::size_t index, Domain domain, KnownGpu& known);
  void note_reach(const cuda::Device& gpu, StoreEntry& entry);
  static std::shared_ptr<Request> begin(const std::shared_ptr<Environment>& environment,
                                        const RequestSettings& settings, const RequestOptions& options);
  // Checks them, and makes the units.
  Status take(std::span<const Range> ranges);
  void make_units();
  void make_parts();
  void choose_long_slots();
  void cut_into_units();
  bool fits_one_lane() const;
  std::uint64_t operation_bytes() const;
  std::string_view verb() const;
  std::uint32_t short_readers() const;
  bool writes_past_cache() const;
  bool is_of_long_ranges() const;
  bool reads_files() const;
  cuda::Device* find_gpu_of_all() const;
  std::string title() const;
  void note_writes(Outcome outcome) const;
  void let_go_of_stores(const std::shared_ptr<Request>& self);
  void post_rest_of_stores(const std::shared_ptr<Request>& self, bool closes) const;
  static void settle_page_cache(std::span<const std::shared_ptr<StoreEntry>> entries, std::vector<Stretch> all);
  Outcome judge();
  Outcome judge_identities();
  Outcome outcome_of_stop() const;
  // Its numbers. REQUIRES: ended()
  Report add_up_parts() const;
  void describe_in(Report& report) const;
  // Of the error that a Report has. REQUIRES: it has not done all.
  Code error_code() const;
  // Why the bytes may not belong together: the store, and what is known of it.
  struct Doubt {
    std::uint32_t store = 0;
    Error cause;
  };
  std::optional<Doubt> doubt_about(std::uint32_t store, const Result<Identity>& now) const;
  std::optional<Doubt> find_doubt() const;
  void fail_because(const Doubt& doubt);
  std::string engine_name(std::size_t engine) const;
  Error describe(const Report& report) const;
  engine::Meaning cause_of(const Failure& failure, const StoreFacts& store) const;
  Error describe_failures(const Report& report) const;
  std::string explain() const;

  std::uint32_t place_ = 0;                         // at the port
  const std::shared_ptr<Environment> environment_;  // shared: tickets may outlive their Context
  std::unique_ptr<Callbacks> callbacks_;            // until it ends; null: there are none
  std::uint32_t lanes_ = 1;                         // the most that may work on it
  bool in_stream_order_ = false;
  bool is_inner_ = false;
  bool as_opened_ = false;               // its stores have to be
  bool may_wait_ = true;                 // for writers of its stores
  std::atomic<bool> has_ranges_{false};  // they were right, and stores may be looked at
  std::atomic<bool> lanes_set_{false};
  std::atomic<std::uint32_t> next_to_wake_{UINT32_MAX};  // index of a part; past the last: all are awake
  std::atomic<std::uint32_t> next_unit_{0};
  std::uint64_t unit_bytes_ = 1;
  std::atomic<engine::Path> expected_{engine::Path::direct};
  std::atomic<bool> may_fill_long_slots_{false};
  bool is_for_one_lane_ = false;    // before its units are made: whether it has a caller that could be that lane
  bool is_on_caller_ = false;       // its first part, which ends with the first byte that is not cached
  bool checks_identities_ = false;  // of some store
  bool asks_servers_ = false;       // of some store whose identity is checked
  bool unasked_ = false;            // no server could be asked
  bool unanswered_ = false;         // a server had not answered when the request ended
  cuda::Device* gpu_of_all_ = nullptr;
  std::atomic<std::uint32_t> parts_left_{0};
  std::atomic<Code> stop_code_{Code::ok};
  std::unique_ptr<const Error> stop_cause_;  // where that is more than a code; written before it
  std::atomic<Outcome> outcome_{Outcome::pending};
  bool stopped_short_ = false;                       // it was stopped before all of it was done
  mutable std::atomic<std::uint32_t> wait_word_{0};  // 0 running, 1 running and someone sleeps, 2 ended
  std::atomic<Waiting*> waiting_{nullptr};
  std::shared_ptr<client::CompletionPort> port_;  // shared with the queue; null: there is none
  std::atomic<AnyWait*> any_wait_{nullptr};       // the thread in wait_any that has registered
  std::uint64_t nvtx_range_ = 0;
  // A question that servers were asked.
  struct Asked {
    std::shared_ptr<const IdentityQuery> query;  // shared with the operation
    Calls::Begun begun;
  };
  // What few requests have.
  struct Rare {
    std::unique_ptr<Late> late;  // until it was asked
    std::unique_ptr<Asked> asked;
    std::string passed_over;  // an engine that reaches some GPUs, and not one of these
  };
  Rare& rare() {
    if (!rare_) rare_ = std::make_unique<Rare>();
    return *rare_;
  }
  const Asked* asked() const { return rare_ ? rare_->asked.get() : nullptr; }
  void forget_asked() {
    if (rare_) rare_->asked.reset();
  }
  std::unique_ptr<Rare> rare_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> left_;  // of each range, not there yet; null: nobody wants to know
  double seconds_ = 0;                                  // from its beginning to its end; written before outcome_
};

template <typename Action>
void Part::do_or_stop(Action action) {
  try {
    action();
  } catch (const std::bad_alloc&) {
    hold->stop(Code::out_of_memory);
  }
}

// Says what the lanes did with the time that they neither worked nor waited for copies, and what the limit was.
// REQUIRES: the bytes, cpu_seconds and copy_seconds of the report are complete.
void settle_time(Report& report, double wall_seconds);

}  // namespace penstock::core
