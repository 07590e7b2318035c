// For tests: what a program syncs, in order, and syncs that fail: what a power cut could leave, which killing a process
// doesn't show. All calls of fsync, fdatasync and syncfs of a test executable come here (tests/support/syncs.cc).
//
// Thread safety: any thread. Lifetime: the process's.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {

class SyncRecorder {
 public:
  static SyncRecorder& get() {
    static SyncRecorder recorder;
    return recorder;
  }
  // Syncs of paths that end so fail; empty: none do.
  void start(std::string failing = {}) {
    const std::scoped_lock lock(mutex_);
    events_.clear();
    failing_ = std::move(failing);
    is_on_ = true;
  }
  // The paths that were synced, with "!" behind them where that was made to fail, and what was added in between.
  std::vector<std::string> stop() {
    const std::scoped_lock lock(mutex_);
    is_on_ = false;
    return events_;
  }
  void add(std::string event) {
    const std::scoped_lock lock(mutex_);
    events_.push_back(std::move(event));
  }
  // 0, or the error that the call is to have.
  int on_sync(int fd) {
    if (!is_on_) return 0;
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
    const std::string name(path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
    const std::scoped_lock lock(mutex_);
    const bool fails = !failing_.empty() && name.ends_with(failing_);
    events_.push_back(fails ? name + "!" : name);
    return fails ? EIO : 0;
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> events_;
  std::string failing_;
  std::atomic<bool> is_on_ = false;
};

// What was synced while it ran.
template <typename Action>
std::vector<std::string> syncs_of(Action action, std::string failing = {}) {
  SyncRecorder::get().start(std::move(failing));
  action();
  return SyncRecorder::get().stop();
}

}  // namespace penstock::test
