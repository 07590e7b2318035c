// The one clock, which is monotonic and which tests can turn, and the time that a thread has worked.
#pragma once

#include <atomic>
#include <chrono>
#include <ctime>
#include <string>

#include "penstock/result.h"

namespace penstock {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

class Clock {
 public:
  static TimePoint now() {
    const std::atomic<Duration>* const turned = turned_.load(std::memory_order_relaxed);
    return turned == nullptr ? std::chrono::steady_clock::now() : TimePoint(turned->load(std::memory_order_relaxed));
  }

 private:
  friend class TurnedClock;
  static inline std::atomic<const std::atomic<Duration>*> turned_{nullptr};
};

// While it lives, it is the process's clock, and stands still unless it is turned. For tests in which nothing sleeps:
// the kernel keeps its own time.
class TurnedClock {
 public:
  TurnedClock() { Clock::turned_.store(&since_start_); }
  ~TurnedClock() { Clock::turned_.store(nullptr); }
  TurnedClock(const TurnedClock&) = delete;
  TurnedClock& operator=(const TurnedClock&) = delete;

  // REQUIRES: time does not go back.
  void turn_to(TimePoint time) { since_start_.store(time.time_since_epoch()); }
  void turn_by(Duration time) { turn_to(Clock::now() + time); }

 private:
  std::atomic<Duration> since_start_{std::chrono::steady_clock::now().time_since_epoch()};
};

// Less than nothing, and what is no number, are no time at all; what no clock counts to is Duration::max().
inline Duration duration_from_seconds(double seconds) {
  constexpr double most_seconds = 9e9;  // nanoseconds of 63 bits reach a little further
  if (!(seconds > 0)) return Duration::zero();
  if (seconds >= most_seconds) return Duration::max();
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}
// Of those that a user gives.
inline Status check_seconds(const std::string& name, double seconds) {
  constexpr double most_seconds = 1e8;
  if (seconds >= 0 && seconds <= most_seconds) return {};
  return Error{Code::invalid_argument, 0, name + " is " + std::to_string(seconds),
               "choose from 0 to 100000000 seconds"};
}
// Never, where no clock counts so far.
inline TimePoint time_after(TimePoint begin, Duration time) {
  return time > TimePoint::max() - begin ? TimePoint::max() : begin + time;
}
inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

// What something took, by the clock and of a CPU.
struct Spent {
  Duration time{};
  double cpu_seconds = 0;
};

inline double thread_cpu_seconds() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace penstock
