// The one clock, which is monotonic, and the time that a thread has worked.
#pragma once

#include <chrono>
#include <ctime>
#include <string>

#include "penstock/result.h"

namespace penstock {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Duration = Clock::duration;

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

inline double thread_cpu_seconds() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace penstock
