// InlineQueue: runs each operation to its end inside submit, on the caller's thread. For small synchronous requests.
#pragma once

#include <condition_variable>
#include <mutex>

#include "engine/queue.h"
#include "files/ring.h"

namespace penstock::files {

class InlineQueue : public engine::Queue {
 public:
  explicit InlineQueue(std::size_t depth) : done_(depth) {}

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  void wake() override;
  // Everything that was submitted has ended.
  void cancel(std::uint64_t) override {}

 private:
  Ring<engine::Done> done_;
  std::mutex mutex_;
  std::condition_variable woken_changed_;
  bool woken_ = false;
};

}  // namespace penstock::files
