// EndSignal: wakes whoever waits for any of several requests. One word for a Context, touched once per batch of ended
// requests.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace penstock::core {

class EndSignal {
 public:
  // Requests have ended since the last call.
  void announce() {
    count_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(count_);
  }

  // Sleeps until `condition()` holds, which is asked after each announcement; false if the time came first.
  template <typename Condition>
  bool wait_until(TimePoint time, Condition condition) {
    if (condition()) return true;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    bool holds = false;
    while (true) {
      const std::uint32_t seen = count_.load(std::memory_order_seq_cst);
      holds = condition();
      if (holds || Clock::now() >= time) break;
      futex_wait_until(count_, seen, time);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return holds;
  }

 private:
  std::atomic<std::uint32_t> count_{0};
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace penstock::core
