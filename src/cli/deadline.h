// Deadline: how long the bytes of a command may take. Setting up does not count: it begins when it is made.
#pragma once

#include <chrono>

namespace penstock::cli {

class Deadline {
 public:
  // 0: none.
  explicit Deadline(double seconds = 0) : seconds_(seconds) {}

  bool passed() const { return seconds_ > 0 && used_seconds() >= seconds_; }
  // What is left of it, for RequestOptions::deadline_seconds: there 0 means none, and below 0 that it has passed.
  double request_seconds() const {
    if (seconds_ <= 0) return 0;
    const double left = seconds_ - used_seconds();
    return left > 0 ? left : -1;
  }

 private:
  double used_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  double seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace penstock::cli
