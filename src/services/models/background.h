// Background: a load that takes more requests than one: a thread that takes one step after the other, and one report of
// all that they did.
//
// Thread safety: calls from any thread, but for those of steps, which are for the thread itself. Lifetime: a thread of
// its own until it has ended; the destructor stops it. The Context must outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "penstock/buffer.h"
#include "penstock/context.h"

namespace penstock::models {

// The Buffers that memory of pieces lies in: they stay as long as this does.
using HeldMemory = std::vector<std::shared_ptr<const void>>;
template <typename Piece>
HeldMemory hold_memory_of(const std::vector<Piece>& pieces) {
  HeldMemory held;
  for (const Piece& piece : pieces) {
    std::shared_ptr<const void> memory = hold_memory(piece.memory);
    if (memory && (held.empty() || held.back() != memory)) held.push_back(std::move(memory));
  }
  return held;
}

class Background {
 public:
  // Reads something by requests, and waits for them.
  class Step {
   public:
    virtual ~Step() = default;
    virtual Status run(Background& background) = 0;
  };
  using Steps = std::vector<std::unique_ptr<Step>>;

  Background(const Context& context, Steps steps, RequestOptions options)
      : context_(context), steps_(std::move(steps)), options_(std::move(options)) {}
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // `beside` is what else is being read, if anything: its failure ends this too, and this has ended only when it has.
  Status start(const Ticket& beside);

  bool ended() const { return ended_.load(std::memory_order_acquire); }
  bool wait_for(std::chrono::nanoseconds time) const;
  void wait() const;
  std::uint64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }  // of the wanted ones
  void stop() { stopped_.store(true, std::memory_order_relaxed); }
  // What has been read; with what `beside` has, once both have ended.
  Report report() const;

  // For steps: a read with what is left of the deadline.
  Result<Ticket> submit(std::span<const Range> ranges);
  // For steps: waits for a request, adds what it did, and lets go of it and its stores. `counts`: its bytes are wanted
  // ones, where they belong.
  Status await(Ticket& ticket, bool counts = false);
  const Context& context() const { return context_; }
  // For steps: wanted bytes are where they belong.
  void count(std::uint64_t bytes) { bytes_done_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  void run();
  void add(const Report& report);
  // Whether there is memory or not: without, the report lacks what `beside` has to say, and its callback is called
  // here.
  void finish(Status status);
  void add_beside();

  const Context context_;
  Steps steps_;
  RequestOptions options_;
  Ticket beside_;
  const TimePoint begun_ = Clock::now();
  std::atomic<std::uint64_t> bytes_done_{0};
  std::atomic<bool> stopped_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable has_ended_;
  std::atomic<bool> ended_{false};
  Report report_;  // guarded until it has ended, then only read
  std::thread thread_;
};

}  // namespace penstock::models
