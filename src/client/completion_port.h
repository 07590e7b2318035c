// CompletionPort: where backends put the completions of requests that were submitted to a CompletionQueue.
//
// A place is reserved before a request is submitted, so completing never fails, allocates or waits. The descriptor
// changes only when the first completion arrives and when the last one is taken.
//
// Thread safety: any thread. Lifetime: shared by the queue's handles and the requests in flight.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "penstock/completion_queue.h"

namespace penstock::client {

class PendingRequest;

class CompletionPort {
 public:
  // REQUIRES: 0 < capacity < 2^32
  explicit CompletionPort(std::size_t capacity);
  ~CompletionPort();
  CompletionPort(const CompletionPort&) = delete;
  CompletionPort& operator=(const CompletionPort&) = delete;

  // Code::would_block if `capacity` requests were not collected yet; Code::closed after close.
  Result<std::uint32_t> reserve(std::uint64_t user_data);
  // Returns the place of a request that was refused.
  void release(std::uint32_t place) noexcept;
  // So that close finds the request. Before any thread works on it.
  void attach(std::uint32_t place, std::shared_ptr<PendingRequest> request) noexcept;
  // Other threads than those that wait here work on the request: a wait sleeps instead of working.
  void runs_elsewhere(std::uint32_t place) noexcept;
  // Once for each place that was reserved and not released.
  void complete(std::uint32_t place, Code code, std::uint64_t bytes) noexcept;

  std::size_t take(std::span<Completion> completions) noexcept;
  // Returns when a completion is there, nothing is in flight, or the time has come.
  void sleep_until(TimePoint time) noexcept;
  // Whether a request is in flight that runs elsewhere.
  bool has_others() const { return elsewhere_.load(std::memory_order_relaxed) != 0; }

  // Created by the first call; -1: no descriptor is left.
  int descriptor();
  bool has_descriptor() const { return has_descriptor_.load(std::memory_order_relaxed); }

  // Reserved and not yet taken.
  std::size_t size() const noexcept;
  std::size_t in_flight() const noexcept;
  std::size_t capacity() const { return completions_.size(); }

  // From now on reserve fails. Asks every request in flight to end.
  void close();

 private:
  struct Place {
    std::uint64_t user_data = 0;
    std::shared_ptr<PendingRequest> request = {};
    std::uint32_t next_free = 0;
    bool is_elsewhere = false;
  };

  std::shared_ptr<PendingRequest> free(std::uint32_t place) noexcept;

  mutable std::mutex mutex_;
  std::vector<Place> places_;  // of requests in flight
  std::uint32_t first_free_ = 0;
  std::uint32_t in_flight_ = 0;
  std::vector<Completion> completions_;  // a ring
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  bool is_closed_ = false;
  UniqueFd descriptor_;  // readable while count_ != 0
  std::atomic<bool> has_descriptor_{false};
  std::atomic<std::uint32_t> elsewhere_{0};
  std::atomic<std::uint32_t> news_{0};  // changes with each completion
  std::atomic<std::uint32_t> sleepers_{0};
};

}  // namespace penstock::client
