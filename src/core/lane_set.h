// LaneSet: the lanes of a Context. Starts them when there is work, hands requests out, replaces a lane whose
// operations are stuck, and ends them all within a bounded time.
//
// Thread safety: any thread. Lifetime: ended by close(); a lane that is stuck in the kernel is leaked, with a message.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/lane.h"

namespace penstock::core {

class LaneSet : public std::enable_shared_from_this<LaneSet> {
 public:
  // The most that a request may move on a caller's thread.
  static constexpr std::uint64_t small_bytes = 128 << 10;
  // Of each lane that callers run: of those for small requests, and of those for longer ones, which also have slots.
  static constexpr std::uint64_t driven_staging_bytes = 4 * StagingArena::granule_bytes;
  static constexpr std::uint64_t long_driven_staging_bytes = 1 << 20;
  static constexpr std::uint64_t long_driven_slot_bytes = 2 << 20;
  static constexpr std::uint64_t direct_driven_staging_bytes = 2 << 20;
  // To an H200, 8 threads beside the caller's brought 16 MiB in 0.60 to 0.78 ms, 12 in 0.80 to 0.89, 4 in 0.65 to 0.76.
  static constexpr std::uint32_t long_driven_helpers = 8;
  // Those with threads, and those that callers share.
  static constexpr std::uint32_t lanes_with_callers(std::uint32_t lanes) {
    return lanes + std::min(lanes, callers_lanes_most);
  }
  // Of all of them, beside so many with threads.
  static constexpr std::uint64_t callers_staging_bytes(std::uint32_t lanes) {
    return (driven_most + std::min(lanes, callers_lanes_most)) * driven_staging_bytes +
           direct_driven_most * direct_driven_staging_bytes +
           long_driven_most * (long_driven_staging_bytes + LongSlots::count * long_driven_slot_bytes);
  }

  struct Size {
    std::uint32_t lanes = 1;
    std::uint64_t staging_bytes = 0;  // of each
    bool has_long_slots = true;
  };
  // As the options say.
  explicit LaneSet(const std::shared_ptr<Environment>& environment);
  LaneSet(std::shared_ptr<Environment> environment, const Size& size);
  ~LaneSet();
  LaneSet(const LaneSet&) = delete;
  LaneSet& operator=(const LaneSet&) = delete;

  std::uint32_t size() const { return size_; }
  // Whether some lane has staging memory, which is taken now if the budget has room for it.
  bool has_staging();
  // Makes what requests to and from a GPU need, on every lane, so that the first of them need not.
  Status prepare(cuda::Device& gpu);
  // Submits the request when its stream has come to it. An error where it can't wait for that: let go of it, and the
  // stream goes on.
  Status submit_in_order(const std::shared_ptr<Request>& request);
  // Gives every part of the request a lane. After close, and where no lane can be started, the request ends at once.
  void submit(const std::shared_ptr<Request>& request);
  // Starts a small request on the caller's thread, where whoever waits for it carries it on. False if that is not
  // possible now: submit it.
  bool start(const std::shared_ptr<Request>& request);
  // Works on requests that were started, until something has ended or the time has come. False: there are none, or
  // other threads work on them.
  bool help(TimePoint until);
  // Runs a small request to its end on the caller's thread; false if that is not possible now: submit it.
  bool drive(const std::shared_ptr<Request>& request, const std::function<bool()>& keep_going = {});
  // The same for a longer one that one lane moves as fast as several (Request::is_for_one_lane).
  bool drive_alone(const std::shared_ptr<Request>& request, const std::function<bool()>& keep_going);
  // Runs a longer request on the caller's thread as far as its bytes are cached; lanes do the rest. False if that is
  // not possible now, or not worth it: submit it.
  bool drive_while_cached(const std::shared_ptr<Request>& request, const std::function<bool()>& keep_going);
  // Ends all lanes; waits as long as the options say and leaks the rest.
  void close();

 private:
  static constexpr std::uint32_t driven_most = 16;
  static constexpr std::uint32_t long_driven_most = 4;
  static constexpr std::uint32_t direct_driven_most = 8;
  static constexpr std::uint32_t callers_lanes_most = 16;

  // Lanes that run on the thread of a synchronous caller, for one request at a time.
  struct DrivenLanes {
    std::uint32_t most = 0;
    std::uint64_t staging_bytes = 0;
    std::uint32_t depth = 0;
    LongSlots slots = {};
    bool is_inline = true;
    std::uint32_t flow_shares = 1;
    std::vector<std::shared_ptr<Lane>> free = {};
    std::uint32_t made = 0;
  };
  // Null where all are in use, or there is no memory for one.
  std::shared_ptr<Lane> take(DrivenLanes& lanes);
  void put_back(DrivenLanes& lanes, std::shared_ptr<Lane> lane);
  bool drive_on(DrivenLanes& lanes, const std::shared_ptr<Request>& request, const std::function<bool()>& keep_going);

  struct Worker {
    std::shared_ptr<Lane> lane;
    std::shared_ptr<std::atomic<std::uint32_t>> ended;  // shared with the thread, which may outlive this
    std::thread thread;
  };
  Worker make_worker(std::uint32_t slot);
  // False where no thread can be started.
  bool ensure_started(Worker& worker);
  // Starts it if it never ran; null where that can't be.
  std::shared_ptr<Lane> lane_at(std::uint32_t slot);
  // The parts from `first` on. False where there is no lane, and none can be started.
  bool give_lanes(Request& request, std::size_t first);
  // Gives the parts to lanes that fit, some to the same lane if need be; false if none does.
  bool give_lanes_that(bool (*fit)(Lane& lane), Request& request, std::size_t first);
  // REQUIRES: the mutex is held, and the parts have their lanes.
  static void post(const std::shared_ptr<Request>& request, std::size_t first);
  void hand_on(const std::shared_ptr<Request>& request);
  bool replace(std::uint32_t slot);
  // Waits for it until then, and leaves it behind otherwise.
  static void end_thread(Worker& worker, TimePoint deadline);
  void collect_ended();
  // A lane that callers run. Once it is made, it stays until the end.
  struct CallersLane {
    std::atomic<bool> is_made{false};
    std::shared_ptr<Lane> lane;  // written once, before that is set
  };
  // Null where there can be none.
  std::shared_ptr<Lane> callers_lane();
  std::shared_ptr<Lane> make_callers_lane(CallersLane& slot);
  bool ensure_caretaker();
  void work_on_callers_lanes(const std::stop_token& stop);
  // REQUIRES: the mutex is held.
  void wake_caretaker();
  void work_on_stuck_lanes();

  const std::shared_ptr<Environment> environment_;
  const Size sizes_;
  const std::uint32_t size_;
  std::mutex mutex_;
  bool closed_ = false;
  std::uint32_t next_ = 0;
  std::uint32_t last_ = 0;  // given to a request
  std::vector<cuda::Device*> prepared_;
  std::uint32_t replaced_ = 0;
  bool lacks_threads_ = false;   // the last lane could not be started
  std::vector<Worker> workers_;  // by slot; no thread: not started yet
  std::vector<Worker> retired_;  // replaced, waiting for their operations
  DrivenLanes driven_{.most = driven_most, .staging_bytes = driven_staging_bytes, .depth = 4};
  DrivenLanes long_driven_{.most = long_driven_most,
                           .staging_bytes = long_driven_staging_bytes,
                           .depth = 8,
                           .slots = {long_driven_helpers, long_driven_slot_bytes}};
  // With a queue of the kernel's.
  DrivenLanes direct_driven_;
  // Driven ones whose operations did not come back. The caretaker polls them until they do.
  struct Stuck {
    std::shared_ptr<Lane> lane;
    DrivenLanes* of = nullptr;
  };
  std::vector<Stuck> stuck_;

  // Found by the caller's thread; and the thread that carries on what nobody waits for.
  std::vector<CallersLane> callers_lanes_;
  std::atomic<bool> caretaker_sleeps_{true};
  std::condition_variable_any caretaker_wakes_;
  std::jthread caretaker_;
};

}  // namespace penstock::core
