// Replacing: how far a store that will take another's name has come, so that what was not written whole does not.
//
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

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

  // A request to write there failed, was refused, or ended early. Without memory to note that, all is spoilt.
  void failed(std::uint64_t begin, std::uint64_t end);
  // One wrote all of it.
  void written(std::uint64_t begin, std::uint64_t end);
  // A write that was abandoned may still land, on whatever is written now.
  void spoil() {
    const std::scoped_lock lock(mutex_);
    is_spoilt_ = true;
  }
  bool is_spoilt() const {
    const std::scoped_lock lock(mutex_);
    return is_spoilt_;
  }

  struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // The first that failed and was not written since.
  std::optional<Stretch> unwritten() const;

 private:
  mutable std::mutex mutex_;
  State state_ = State::open;
  bool is_spoilt_ = false;
  std::map<std::uint64_t, std::uint64_t> stretches_;  // that failed, by their begin: the end, before the next begin
};

}  // namespace penstock::core
