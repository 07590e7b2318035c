// SpareMemory: memory of sets that were closed, for the next ones. While a set is open nothing is freed (HeldFrees), so
// that a program which opens and closes others meanwhile would use up its budget.
//
// Thread safety: any thread. Lifetime: shared by a server and its sets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "penstock/context.h"

namespace penstock::gpu_queues {

class SpareMemory {
 public:
  // What there is and is not much too large, or new memory.
  Result<Buffer> take(const Context& context, Domain domain, std::size_t size_bytes) {
    {
      const std::scoped_lock lock(mutex_);
      const auto found = std::ranges::find_if(spare_, [&](const Buffer& buffer) {
        return buffer.region().domain == domain && buffer.size_bytes() >= size_bytes &&
               buffer.size_bytes() <= 2 * size_bytes;
      });
      if (found != spare_.end()) {
        Buffer taken = std::move(*found);
        spare_.erase(found);
        return taken;
      }
    }
    return context.allocate(domain, size_bytes);
  }
  void give_back(Buffer buffer) {
    const std::scoped_lock lock(mutex_);
    if (users_ > 0 && buffer.size_bytes() != 0) spare_.push_back(std::move(buffer));
  }

  // Sets that are open. Without any, nothing is kept.
  void begin_use() {
    const std::scoped_lock lock(mutex_);
    ++users_;
  }
  void end_use() {
    std::vector<Buffer> unused;  // not freed under the lock
    const std::scoped_lock lock(mutex_);
    if (--users_ == 0) unused.swap(spare_);
  }

 private:
  std::mutex mutex_;
  std::size_t users_ = 0;
  std::vector<Buffer> spare_;
};

}  // namespace penstock::gpu_queues
