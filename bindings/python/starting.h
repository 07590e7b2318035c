// Threads that start requests: opening a store may take as long as a disk or a server likes, and event loops don't
// wait. They belong to the library, so they never need the GIL, and stand in no executor's queue.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

#include "penstock/request.h"

namespace penstock::python {

class Starters {
 public:
  // REQUIRES: the GIL. A forked child gets its own.
  static Starters& of_process();

  // Soon calls `job`, which must not throw. False if there is no thread for it.
  [[nodiscard]] bool run(std::function<void()> job);
  // A small request that no thread waits for may end a millisecond late. A thread that waits for one carries on the
  // others too, so one thread waits at a time.
  void wait_for(const Ticket& ticket);

 private:
  explicit Starters(pid_t process) : process_(process) {}
  void serve();

  const pid_t process_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable posted_;
  std::deque<std::function<void()>> jobs_;
  std::size_t threads_ = 0;
  std::size_t idle_ = 0;
  std::atomic<bool> one_waits_ = false;
};

}  // namespace penstock::python
