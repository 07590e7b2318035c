// ThreadedQueue: for engines whose calls block. A few threads of its own that make them, and one list of completions.
//
// Operations on cached bytes are copies, so the polling thread does them itself; a hand-off would cost more. The others
// go to threads, and so do all on network and FUSE mounts. A shared read is cut into stretches, which threads of their
// own make side by side, in order, whatever the others wait for. Threads are started when there is work for them and
// live as long as the queue.
//
// Thread safety and lifetime: as engine::Queue. Nothing is allocated for an operation.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "engine/engine.h"
#include "files/ring.h"
#include "files/shared_read.h"

namespace penstock::files {

// Takes the ends of operations, from any thread.
class Completions {
 public:
  virtual ~Completions() = default;
  virtual void complete(const engine::Done& done) = 0;
};

// What one thread does with operations; used by that thread alone.
class Worker {
 public:
  virtual ~Worker() = default;
  virtual engine::Done run(const engine::Op& op) = 0;
  // The same; where there is no memory for it, the operation ends with that.
  engine::Done run_or_fail(const engine::Op& op);
  // Whether the operation may be part of a group; neighbours in the queue for which this holds go to run_group
  // together.
  virtual bool joins_group(const engine::Op&) const { return false; }
  // Throws nothing.
  virtual void run_group(std::span<const engine::Op> ops, Completions& completions) {
    for (const engine::Op& op : ops) completions.complete(run_or_fail(op));
  }
};

class ThreadedQueue : public engine::Queue, private Completions {
 public:
  using MakeWorker = std::function<std::unique_ptr<Worker>()>;
  static constexpr std::size_t max_group = 64;

  ThreadedQueue(const engine::QueueOptions& options, MakeWorker make_worker);
  ~ThreadedQueue() override;

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  int event() override;
  void wake() override;
  void cancel(std::uint64_t cookie) override;

  // For tests.
  std::size_t thread_count() const { return callers_.threads.size() + sharers_.threads.size(); }

 private:
  // Threads with the same kind of work.
  struct Crew {
    Crew(std::size_t limit, void (ThreadedQueue::*what)(Worker&)) : most(limit), work(what) { threads.reserve(limit); }
    const std::size_t most;
    void (ThreadedQueue::*const work)(Worker&);
    std::vector<std::thread> threads;  // of the thread that uses the queue
    std::condition_variable work_arrived;
    std::size_t idle = 0;  // guarded by the queue's lock
  };

  void complete(const engine::Done& done) override;
  void tell_of_end();
  std::size_t collect(std::span<engine::Done> done);
  std::size_t copy_cached(std::span<engine::Done> done);
  bool start_threads(Crew& crew, std::size_t handed_over);
  void do_without_callers();
  void do_without_sharers();
  void call(Worker& worker);
  void share(Worker& worker);
  std::size_t take_group(const Worker& worker, std::span<engine::Op> group);
  std::vector<SharedRead>::iterator unfinished_read();
  void end_if_over(std::vector<SharedRead>::iterator read);
  std::size_t stretches_left() const;

  // Of the thread that uses the queue.
  const std::size_t depth_;
  const MakeWorker make_worker_;
  const std::unique_ptr<Worker> own_worker_;
  std::size_t in_flight_ = 0;
  Ring<engine::Op> cached_;
  Crew callers_;
  Crew sharers_;
  bool has_warned_ = false;

  std::mutex mutex_;  // guards what follows
  std::condition_variable poll_ends_;
  Ring<engine::Op> pending_;
  std::vector<SharedRead> shared_;  // in their order
  Ring<engine::Done> done_;
  UniqueFd event_;             // made when it is first asked for
  bool event_wanted_ = false;  // someone waits for it
  bool woken_ = false;
  bool stopping_ = false;
};

}  // namespace penstock::files
