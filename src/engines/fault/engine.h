// The fault engine wraps another and injects, from a seed, what storage does on a bad day: short transfers, errors,
// delays, completions out of order, and completions that never come. For tests.
//
// What is injected depends on the seed, the number of the queue and the order of its operations, and on nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"

namespace penstock::fault {

// Probabilities are in thousandths, at most 1000 together.
struct FaultPlan {
  std::uint64_t seed = 1;
  std::uint32_t short_transfer = 0;  // fewer bytes than asked for, never none
  std::uint32_t io_error = 0;        // EIO
  std::uint32_t again = 0;           // EAGAIN
  std::uint32_t interrupted = 0;     // EINTR
  std::uint32_t delay = 0;           // the completion comes later, by up to max_delay
  std::uint32_t never = 0;           // nothing happens until FaultControl::release_stuck
  std::chrono::microseconds max_delay{1000};
  bool reorder = false;  // completions come in any order
};

class Queue;

// What a test does to an engine from outside. Thread safety: from any thread. Lifetime: may outlive the engine, after
// which nothing is stuck; the engine must not be destroyed while release_stuck runs.
class FaultControl {
 public:
  // Performs the operations that were stuck, as a device that writes late, and lets them complete.
  void release_stuck();
  std::uint64_t stuck() const { return stuck_count_.load(); }
  // Whether calls are stuck from now on. Nothing else befalls them.
  void hang_calls(bool yes) { hangs_calls_.store(yes); }
  // Whether writes are, as if the plan had said so.
  void hang_writes(bool yes) { hangs_writes_.store(yes); }

 private:
  friend class Queue;
  friend class Engine;
  struct Stuck {
    Queue* queue = nullptr;
    engine::Op op;
  };
  // For so many more that a queue may have; they stay when it goes.
  void make_room(std::size_t operations);
  void add(Queue& queue, const engine::Op& op);

  engine::Engine* inner_ = nullptr;
  std::mutex mutex_;  // guards stuck_, and the late completions of every queue
  std::vector<Stuck> stuck_;
  std::size_t room_ = 0;
  std::atomic<std::uint64_t> stuck_count_{0};
  std::atomic<bool> hangs_calls_{false};
  std::atomic<bool> hangs_writes_{false};
};

// `control` is shared by the engine and the test that holds it; none is needed to inject.
std::unique_ptr<engine::Engine> make_engine(std::unique_ptr<engine::Engine> inner, const FaultPlan& plan,
                                            std::shared_ptr<FaultControl> control = nullptr);

}  // namespace penstock::fault
