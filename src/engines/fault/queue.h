// Queue of the fault engine: decides for each operation what befalls it, then lets the inner queue do the rest.
//
// Thread safety and lifetime: as engine::Queue.
#pragma once

#include <optional>
#include <random>
#include <vector>

#include "engines/fault/engine.h"

namespace penstock::fault {

class Queue : public engine::Queue {
 public:
  Queue(std::unique_ptr<engine::Queue> inner, const FaultPlan& plan, std::uint64_t seed, std::size_t depth,
        FaultControl& control);

  std::size_t submit(std::span<const engine::Op> ops) override;
  std::size_t poll(std::span<engine::Done> done, TimePoint deadline) override;
  void wake() override { inner_->wake(); }
  void cancel(std::uint64_t cookie) override { inner_->cancel(cookie); }

 private:
  friend class FaultControl;
  enum class Fault { none, short_transfer, io_error, again, interrupted, delay, never };
  // What is to be done to the completion of an operation that the inner queue has.
  struct Pending {
    std::uint64_t cookie = 0;
    std::optional<std::uint64_t> most_bytes;
    Duration delay{};
  };
  struct Held {
    engine::Done done;
    TimePoint due;
  };

  Fault draw();
  std::uint64_t random(std::uint64_t low, std::uint64_t high);
  void inject(engine::Op op);
  void shorten(engine::Op& op, Pending& pending);
  void fail(const engine::Op& op, int error);
  void pass_on_backlog();
  void take_inner(std::span<const engine::Done> done);
  void take_late();
  std::size_t deliver(std::span<engine::Done> done, TimePoint now);
  TimePoint next_due() const;

  const std::unique_ptr<engine::Queue> inner_;
  const FaultPlan plan_;
  const std::size_t depth_;
  FaultControl& control_;
  std::mt19937_64 random_;  // decides what befalls operations
  std::mt19937_64 order_;   // decides the order of completions, which depends on time as well
  std::size_t in_flight_ = 0;
  // With room for all that is in flight: nothing is allocated for an operation.
  std::vector<engine::Op> backlog_;  // taken from the caller, not yet by the inner queue
  std::vector<Pending> pending_;
  std::vector<Held> held_;  // completions that wait for their time
  std::vector<engine::Done> inner_done_;
  std::vector<engine::Done> late_;  // of released operations; guarded by the control's mutex
};

}  // namespace penstock::fault
