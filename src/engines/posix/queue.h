// Queue of the posix engine: a few threads of its own that make blocking calls, and one list of completions.
//
// Operations on cached bytes are copies, so the polling thread does them itself; a hand-off would cost more. The others
// go to threads, which are started when there is work for them and live as long as the queue.
//
// Thread safety and lifetime: as engine::Queue. Nothing is allocated for an operation.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "files/ring.h"

namespace penstock::posix {

class Queue : public engine::Queue {
 public:
  explicit Queue(const engine::QueueOptions& options);
  ~Queue() override;

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  void wake() override;
  void cancel(std::uint64_t cookie) override;

  // For tests.
  std::size_t thread_count() const { return threads_.size(); }

 private:
  std::size_t collect(std::span<engine::Done> done);
  std::size_t copy_cached(std::span<engine::Done> done);
  void start_threads();
  void work();

  // Of the thread that uses the queue.
  const std::size_t depth_;
  const std::size_t max_threads_;
  std::size_t in_flight_ = 0;
  files::Ring<engine::Op> cached_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_arrived_;
  std::condition_variable poll_ends_;
  files::Ring<engine::Op> pending_;
  files::Ring<engine::Done> done_;
  std::size_t idle_threads_ = 0;
  bool woken_ = false;
  bool stopping_ = false;
};

}  // namespace penstock::posix
