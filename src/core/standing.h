// StandingRequest: a request that streams begin and wait for by words in memory (penstock/standing.h).
//
// Thread safety: look is the gate's; the rest from any thread. Lifetime: shared by its handle and the gate; the words
// are never used again, since a graph may still look at them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "core/request.h"
#include "cuda/control_memory.h"

namespace penstock::core {

class LaneSet;

class StandingRequest final : public client::StandingRequest {
  struct Private {};

 public:
  // What each round is made of.
  struct Round {
    std::shared_ptr<Environment> environment;
    std::weak_ptr<LaneSet> lanes;  // not the Context's any more: there are no more rounds
    RangeSource ranges;
    RequestSettings settings;
    RequestOptions options;
  };

  StandingRequest(Private, cuda::Device& gpu, Round round) : gpu_(gpu), round_(std::move(round)) {}
  static Result<std::shared_ptr<StandingRequest>> create(cuda::Device& gpu, Round round);
  ~StandingRequest() override { StandingRequest::end(); }

  // Begins a round if a stream asks for one; returns its request, or nothing.
  std::shared_ptr<Request> look();
  // No more rounds; who waits for one goes on.
  void end() override;
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }

  Status enqueue(void* stream) override;
  std::uint64_t begin_word() const override { return begin_.device; }
  std::uint64_t end_word() const override { return end_.device; }
  std::uint64_t rounds() const override { return rounds_.load(std::memory_order_relaxed); }
  Report report() const override;

 private:
  using Word = std::atomic<std::uint32_t>;
  static Word& word(const cuda::ControlMemory::Cell& cell) { return *reinterpret_cast<Word*>(cell.host); }
  Result<std::shared_ptr<Request>> make(bool is_closing) const;

  cuda::Device& gpu_;
  const Round round_;
  cuda::ControlMemory::Cell begin_;
  cuda::ControlMemory::Cell end_;
  bool counts_ = false;  // as a stream that waits
  std::atomic<bool> ended_{false};
  std::atomic<std::uint64_t> rounds_{0};
  std::mutex turn_;           // held while a round begins, and by who ends it
  mutable std::mutex mutex_;  // guards what follows; after turn_
  std::shared_ptr<Request> last_;
  std::optional<Error> error_;  // why the last round has none
};

}  // namespace penstock::core
