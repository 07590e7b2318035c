// ForkSafeMutex: a mutex of the process that forked children find free. Others may be held by a thread that stayed with
// the parent, and then nothing in the child can ever lock them.
//
// A fork waits until it can lock all of them, so none is held while a disk or a server is waited for, nor while another
// one is locked.
//
// Thread safety: any thread. Lifetime: static storage.
#pragma once

#include <mutex>

namespace penstock {

class ForkSafeMutex {
 public:
  ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;
  ~ForkSafeMutex();

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct All;

  std::mutex mutex_;
  ForkSafeMutex* next_ = nullptr;
};

}  // namespace penstock
