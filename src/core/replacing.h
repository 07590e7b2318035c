// Replacing: how far a store that will take another's name has come, so that what was not written whole does not.
//
// Thread safety: any thread. Where there is no memory to note all that failed, more counts as failed.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

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

  // A request to write there failed, was refused, or ended early.
  void failed(std::uint64_t begin, std::uint64_t end);
  // One wrote all of it.
  void written(std::uint64_t begin, std::uint64_t end);
  struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // The first that failed and was not written since.
  std::optional<Stretch> unwritten() const;

 private:
  void put(std::size_t at, Stretch stretch);

  mutable std::mutex mutex_;
  State state_ = State::open;
  std::vector<Stretch> stretches_;  // that failed, ascending, with something between them
  bool is_lost_ = false;            // there was no memory to note the first of them
};

}  // namespace penstock::core
