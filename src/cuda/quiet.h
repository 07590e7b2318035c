// Quiet: calls that wait for all that a device is doing, and hold up every other call of the driver meanwhile. They may
// never end while a stream waits for us, since that waits for copies of ours; so none begins meanwhile. Programs that
// keep a device busy for hours say so (HeldFrees), which counts as a stream that waits.
//
// The driver's own calls of this kind (freeing, unregistering, loading of modules) are made by one thread of Quiet's
// alone, as Deferred. Making memory known (allocating, registering) does not wait and needs none of this.
//
// Thread safety: any thread. Lifetime: the process's; of others, until nobody uses them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "penstock/error.h"

namespace penstock::cuda {

// Work for Quiet's thread, made beforehand: handing it over needs no memory, so that destructors can.
class Deferred {
 public:
  Deferred() = default;
  virtual ~Deferred() = default;
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;

 private:
  friend class Quiet;

  // One call that may wait. True: there is more to do.
  virtual bool run() = 0;

  // Quiet's own.
  std::shared_ptr<Deferred> next_;
  bool is_listed_ = false;
};

class Quiet {
 public:
  static Quiet& of_process();

  explicit Quiet(std::chrono::milliseconds longest_call = std::chrono::seconds(5)) : longest_call_(longest_call) {}
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

  // A stream is about to wait for us. Calls that are under way end first; false if they don't, because the device is
  // busy with something that may wait for the caller.
  bool begin_wait();
  void end_wait() { waits_.fetch_sub(1); }
  bool streams_wait() const { return waits_.load() != 0; }

  // Runs the call, which must not come here again; or nothing and false, if a stream waits.
  bool run(const std::function<void()>& call);

  // Has the thread run it, as soon as no stream waits. What is listed already is not listed twice.
  void defer(std::shared_ptr<Deferred> work);
  // Starts the thread, so that `defer` need not.
  void get_ready();
  // Waits until nothing is left of what was deferred; not for long, and not if a stream waits or a call takes long.
  void catch_up(std::chrono::milliseconds at_most = std::chrono::milliseconds(100));

  // Memory that waits to be freed.
  struct Unfreed {
    std::uint64_t calls = 0;
    std::uint64_t pinned_bytes = 0;
    std::uint64_t device_bytes = 0;
  };
  Unfreed unfreed() const;
  // Told by whoever defers that.
  enum class Kind : std::uint8_t { pinned, device };
  void note_unfreed(Kind kind, std::uint64_t bytes);
  void note_freed(Kind kind, std::uint64_t bytes);

 private:
  // Whether this is a forked child, which has neither the thread nor a driver.
  bool is_in_child() const {
    const ForkGuard* const guard = guard_.load(std::memory_order_acquire);
    return guard != nullptr && guard->in_child();
  }
  void work();
  bool start_thread();
  void list(std::shared_ptr<Deferred> work);
  void end_with_process();
  std::atomic<std::uint64_t>& bytes_of(Kind kind) {
    return kind == Kind::pinned ? unfreed_pinned_bytes_ : unfreed_device_bytes_;
  }

  const std::chrono::milliseconds longest_call_;
  // Since the thread was started: a child that was forked before is its own.
  std::optional<ForkGuard> made_guard_;
  std::atomic<const ForkGuard*> guard_{nullptr};
  std::shared_timed_mutex mutex_;  // shared by calls of `run`; a stream that begins to wait has it alone, for a moment
  std::atomic<std::uint32_t> waits_{0};
  std::atomic<std::uint64_t> unfreed_calls_{0};
  std::atomic<std::uint64_t> unfreed_pinned_bytes_{0};
  std::atomic<std::uint64_t> unfreed_device_bytes_{0};

  std::mutex deferred_mutex_;  // guards what follows
  std::condition_variable changed_;
  std::shared_ptr<Deferred> first_;
  Deferred* last_ = nullptr;
  bool is_running_ = false;
  TimePoint running_since_;
  bool is_ending_ = false;
  std::thread thread_;
};

// What was refused because streams wait.
Error streams_wait_error(const std::string& what);

// For an allocation that failed: what waits to be freed, if anything does.
std::string describe_unfreed(Quiet::Kind kind);

}  // namespace penstock::cuda
