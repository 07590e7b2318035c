// Once: what threads do a single time, all of them waiting until it is done. Where it throws, the next caller tries it
// again. std::call_once says the same; under the thread sanitizer its second attempt never returns.
//
// Thread safety: any thread.
#pragma once

#include <atomic>
#include <mutex>

namespace penstock {

class Once {
 public:
  template <typename Work>
  void run(const Work& work) {
    if (done_.load(std::memory_order_acquire)) return;
    const std::scoped_lock lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    work();
    done_.store(true, std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> done_{false};
};

}  // namespace penstock
