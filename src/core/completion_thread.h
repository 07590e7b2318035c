// CompletionThread: where callbacks run, so that no lane ever runs one.
//
// Thread safety: post from any thread. Lifetime: starts at the first post; closing runs what was posted. Where it can't
// be started, an action runs on the thread that posts it, and the next post tries again.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"

namespace penstock::core {

class CompletionThread {
 public:
  CompletionThread() = default;
  ~CompletionThread() { close(); }
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  void post(std::function<void()> action);
  // Waits until what was posted by now has run; false if it has not by then, or this is that thread.
  bool wait_for_posted(TimePoint deadline);
  // Runs what was posted, then ends the thread. Later posts run on the thread that posts them.
  void close();
  // Whether the caller is inside a callback of any Context: there it must not wait.
  static bool inside_callback();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> actions;
    bool closed = false;
  };
  static void run(State& state);
  bool ensure_thread();

  // Shared with the thread: a callback may drop the last reference to everything else.
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;         // guarded by State::mutex, as is the next
  bool lacks_thread_ = false;  // one could not be started
};

}  // namespace penstock::core
