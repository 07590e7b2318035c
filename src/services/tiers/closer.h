// Closer: closes deleted files, on a thread of its own. The last close of a file frees its bytes, for which a file
// system that discards what is freed (ext4 mounted with `discard`, without a journal) takes a second for each GiB.
// Nobody waits for that but who needs the room.
//
// Thread safety: any thread. Lifetime: its end waits until all files are closed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace penstock::tiers {

class Closer {
 public:
  Closer() = default;
  ~Closer();
  Closer(const Closer&) = delete;
  Closer& operator=(const Closer&) = delete;

  // Returns at once, unless so many files are open already that the process would run short of descriptors.
  void take(std::vector<UniqueFd> files);
  // Waits until all that it has taken so far is closed. False: that was so already.
  bool finish();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable taken_more_;
  std::condition_variable closed_more_;
  std::vector<UniqueFd> waiting_;
  std::uint64_t taken_ = 0;
  std::uint64_t closed_ = 0;
  bool stopping_ = false;
  std::thread thread_;  // begins when it is first needed
};

}  // namespace penstock::tiers
