// CompletionThread: where callbacks run, so that no lane ever runs one. To post what was made beforehand takes no
// memory.
//
// Thread safety: post from any thread. Lifetime: starts at the first post; closing runs what was posted. Where it can't
// be started, an action runs on the thread that posts it, and the next post tries again.
#pragma once

#include <concepts>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "memory/freed_later.h"

namespace penstock::core {

class CompletionThread {
 public:
  CompletionThread() = default;
  ~CompletionThread() { close(); }
  CompletionThread(const CompletionThread&) = delete;
  CompletionThread& operator=(const CompletionThread&) = delete;

  // What is posted.
  class Action {
   public:
    Action() = default;
    virtual ~Action() = default;
    Action(const Action&) = delete;
    Action& operator=(const Action&) = delete;

   private:
    friend class CompletionThread;

    // Throws nothing.
    virtual void run() = 0;

    std::unique_ptr<Action> next_;  // the CompletionThread's
  };

  void post(std::unique_ptr<Action> action);
  template <std::invocable Call>
  void post(Call call) {
    post(std::unique_ptr<Action>(std::make_unique<Made<Call>>(std::move(call))));
  }
  // Memory that a lane let go of last, if there is some.
  void free_there(memory::FreedLater::List memory);
  // Waits until what was posted by now has run; false if it has not by then, or this is that thread.
  bool wait_for_posted(TimePoint deadline);
  // Runs what was posted, then ends the thread. Later posts run on the thread that posts them.
  void close();
  // Whether the caller is inside a callback of any Context: there it must not wait.
  static bool inside_callback();

 private:
  template <typename Call>
  class Made : public Action {
   public:
    explicit Made(Call call) : call_(std::move(call)) {}

   private:
    void run() override { call_(); }
    Call call_;
  };
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::unique_ptr<Action> first;  // a list
    Action* last = nullptr;
    memory::FreedLater::List to_free;
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
