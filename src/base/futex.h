// Sleeping on a 32-bit word until it changes, with a deadline. Linux futexes, private to the process.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include "base/clock.h"

namespace penstock {

// Returns when the word differs from `expected`, someone woke it, or the deadline has passed; may return early.
inline void futex_wait_until(const std::atomic<std::uint32_t>& word, std::uint32_t expected, TimePoint deadline) {
  const auto since_boot = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count();
  timespec until{};
  until.tv_sec = since_boot / 1'000'000'000;
  until.tv_nsec = since_boot % 1'000'000'000;
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is what steady_clock counts.
  const timespec* limit = deadline == TimePoint::max() ? nullptr : &until;
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, expected, limit, nullptr, FUTEX_BITSET_MATCH_ANY);
}

inline void futex_wake(const std::atomic<std::uint32_t>& word, std::uint32_t threads) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, threads, nullptr, nullptr, 0);
}
inline void futex_wake_all(const std::atomic<std::uint32_t>& word) {
  futex_wake(word, INT_MAX);
}

}  // namespace penstock
