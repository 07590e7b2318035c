// TurnLock: a lock for those who mostly try, and go elsewhere where another has it. One atomic operation takes it and
// one gives it back, without a call.
//
// Thread safety: any thread; who locked it unlocks it. As std::mutex, for std::unique_lock and std::scoped_lock.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace penstock {

class TurnLock {
 public:
  TurnLock() = default;
  TurnLock(const TurnLock&) = delete;
  TurnLock& operator=(const TurnLock&) = delete;

  bool try_lock() {
    std::uint32_t found = free;
    return word_.compare_exchange_strong(found, taken, std::memory_order_acquire, std::memory_order_relaxed);
  }
  void lock() {
    while (word_.exchange(wanted, std::memory_order_acquire) != free) futex_wait_until(word_, wanted, TimePoint::max());
  }
  void unlock() {
    if (word_.exchange(free, std::memory_order_release) == wanted) futex_wake_all(word_);
  }

 private:
  static constexpr std::uint32_t free = 0;
  static constexpr std::uint32_t taken = 1;
  static constexpr std::uint32_t wanted = 2;  // taken, and someone may sleep until it is free

  std::atomic<std::uint32_t> word_{free};
};

}  // namespace penstock
