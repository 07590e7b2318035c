// Quiet: calls that may wait for whole devices (freeing, registering) happen only while no stream waits for us. Such a
// stream waits for copies of ours, and those may wait for the call.
//
// Thread safety: any thread. Lifetime: the process's.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/fork_guard.h"
#include "penstock/error.h"

namespace penstock::cuda {

class Quiet {
 public:
  static Quiet& of_process();

  explicit Quiet(std::chrono::milliseconds longest_call = std::chrono::seconds(5)) : longest_call_(longest_call) {}

  // A stream is about to wait for us. Calls that are under way end first; false if they don't, because the device is
  // busy with something that may wait for the caller.
  bool begin_wait();
  void end_wait() { waits_.fetch_sub(1); }
  bool streams_wait() const { return waits_.load() != 0; }

  // Runs the call, which must not come here again; or nothing and false, if a stream waits.
  bool run(const std::function<void()>& call);
  // Runs it now, or on a thread of its own as soon as no stream waits.
  void run_later(std::function<void()> call);

 private:
  void run_deferred();

  const std::chrono::milliseconds longest_call_;
  const ForkGuard fork_guard_;
  std::shared_timed_mutex mutex_;  // shared by calls; a stream that begins to wait has it alone, for a moment
  std::atomic<std::uint32_t> waits_{0};
  std::mutex deferred_mutex_;
  std::vector<std::function<void()>> deferred_;
  bool has_thread_ = false;
};

// What was refused because streams wait.
Error streams_wait_error(const std::string& what);

}  // namespace penstock::cuda
