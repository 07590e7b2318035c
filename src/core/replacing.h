// Replacing: how far a store that will take another's name has come, so that what was not written whole does not.
//
// Thread safety: any thread. Noting takes no memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>

namespace penstock::core {

class Replacing {
 public:
  enum class State : std::uint8_t { open, committed, aborted };

  State state() const {
    const std::scoped_lock lock(mutex_);
    return state_;
  }
  void finish(State state) {
    const std::scoped_lock lock(mutex_);
    if (state_ == State::open) state_ = state;
  }

  // A request to write there failed, or ended early.
  void failed(std::uint64_t begin, std::uint64_t end) {
    const std::scoped_lock lock(mutex_);
    if (count_ < stretches_.size()) {
      stretches_[count_++] = {begin, end};
    } else {
      Stretch& last = stretches_.back();
      last = {std::min(last.begin, begin), std::max(last.end, end)};
    }
  }
  // One wrote all: also what failed before within it.
  void written(std::uint64_t begin, std::uint64_t end) {
    const std::scoped_lock lock(mutex_);
    const auto is_written = [&](const Stretch& stretch) { return begin <= stretch.begin && stretch.end <= end; };
    const auto kept = std::remove_if(stretches_.begin(), stretches_.begin() + count_, is_written);
    count_ = static_cast<std::uint32_t>(kept - stretches_.begin());
  }
  bool is_whole() const {
    const std::scoped_lock lock(mutex_);
    return count_ == 0;
  }

 private:
  struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  mutable std::mutex mutex_;
  State state_ = State::open;
  std::array<Stretch, 32> stretches_;  // that failed; the last may stand for several, and what is between them
  std::uint32_t count_ = 0;
};

}  // namespace penstock::core
