#include "base/fork_safe_mutex.h"

#include <pthread.h>

namespace penstock {

struct ForkSafeMutex::All {
  std::mutex mutex;  // held while the process forks, too
  ForkSafeMutex* first = nullptr;

  static All& of_process() {
    // Never destroyed: some of them are, after everything else.
    static All* const all = [] {
      auto* const made = new All;
      ::pthread_atfork([] { of_process().lock(); }, [] { of_process().unlock(); }, [] { of_process().unlock(); });
      return made;
    }();
    return *all;
  }
  void lock() {
    mutex.lock();
    for (ForkSafeMutex* each = first; each != nullptr; each = each->next_) each->mutex_.lock();
  }
  void unlock() {
    for (ForkSafeMutex* each = first; each != nullptr; each = each->next_) each->mutex_.unlock();
    mutex.unlock();
  }
};

ForkSafeMutex::ForkSafeMutex() {
  All& all = All::of_process();
  const std::scoped_lock lock(all.mutex);
  next_ = all.first;
  all.first = this;
}

ForkSafeMutex::~ForkSafeMutex() {
  All& all = All::of_process();
  const std::scoped_lock lock(all.mutex);
  ForkSafeMutex** at = &all.first;
  while (*at != this) at = &(*at)->next_;
  *at = next_;
}

}  // namespace penstock
