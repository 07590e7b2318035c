// Server: the threads that serve sets of queues. Without sets they sleep.
//
// Thread safety: any thread. Lifetime: the Context outlives it. Sets may outlive it: nobody serves them then.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fork_guard.h"
#include "services/gpu_queues/worker.h"

namespace penstock::gpu_queues {

class Server {
 public:
  static Result<std::shared_ptr<Server>> start(const Context& context, const GpuServerOptions& options,
                                               FaultPlan faults = {});
  Server(const Context& context, const GpuServerOptions& options, FaultPlan faults);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  Result<std::shared_ptr<Set>> open(const GpuQueuesOptions& options);
  // As GpuQueues has it.
  Status reset(Set& set);
  void close(const std::shared_ptr<Set>& set);
  void close();

  std::uint32_t threads() const { return options_.threads; }
  bool in_child() const { return fork_guard_.in_child(); }
  // Whether a thread has ended, or has not looked at its queues for long.
  bool is_dead() const;

 private:
  struct View {
    std::uint64_t version = 0;
    std::vector<std::shared_ptr<Set>> sets;
  };
  static constexpr Duration::rep asleep = std::numeric_limits<Duration::rep>::max();
  // One for each thread; others read it.
  struct alignas(64) Life {
    std::atomic<Duration::rep> looked{0};
    std::atomic<bool> ended{true};

    void beat() {
      looked.store(std::chrono::steady_clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    }
  };

  Status start_threads();
  void look_again(View& view);
  void work(std::uint32_t thread);
  bool look(Worker& worker, std::uint32_t thread, const View& view);
  // There has been nothing to do since then.
  void rest(Life& life, TimePoint since, const View& view, const Worker& worker);

  const Context context_;
  GpuServerOptions options_;
  const FaultPlan faults_;
  ForkGuard fork_guard_;
  const std::shared_ptr<SpareMemory> spare_ = std::make_shared<SpareMemory>();  // shared with sets
  std::vector<Life> lives_;

  std::mutex reset_mutex_;    // taken first
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Set>> sets_;
  std::vector<std::thread> threads_;
  std::atomic<std::uint64_t> version_{1};  // of the sets
  std::atomic<bool> ending_{false};
};

}  // namespace penstock::gpu_queues
