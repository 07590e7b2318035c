// BlockLocks: which blocks of a store are being read, modified and written, so that two writers of parts of one block
// don't undo each other.
//
// Thread safety: any thread. Nobody sleeps on it: who fails comes back.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_set>

namespace penstock::core {

class BlockLocks {
 public:
  bool try_lock(std::uint64_t block) {
    const std::scoped_lock lock(mutex_);
    return locked_.insert(block).second;
  }
  void unlock(std::uint64_t block) {
    const std::scoped_lock lock(mutex_);
    locked_.erase(block);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<std::uint64_t> locked_;
};

}  // namespace penstock::core
