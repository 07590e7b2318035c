// Worker: what one thread of a server does in a round: takes the commands of its queues, copies what is at hand, has
// requests do the rest, and posts completions.
//
// Thread safety: one thread. Lifetime: the Context outlives it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "services/gpu_queues/batch.h"

namespace penstock::gpu_queues {

// For tests: what befalls a command.
enum class Fault : std::uint8_t {
  none,
  lose,           // it is never completed
  fail,           // and not served
  late,           // completed after those that were fetched with it
  old_head,       // the completion tells how far it had fetched when it fetched the command; no lie
  twice,          // completed
  other_command,  // one that it does not have is completed too
  unfetched,      // the next one is completed too, as failed, before it is fetched
  other_head,     // completed too with a head that can't be
  other_phase,    // completed too in a phase that is not due
  end_thread,
};
using FaultPlan = std::function<Fault(const nvme::Command& command)>;

class Worker {
 public:
  struct Place {
    std::uint32_t thread = 0;
    std::uint32_t threads = 1;
  };
  // The plan, which may be empty, outlives it.
  Worker(const Context& context, Place place, const FaultPlan& faults)
      : context_(context), place_(place), faults_(faults) {
    transfers_.reserve(commands_at_once);
  }

  // Looks at this thread's queues of a set once. Whether there was something.
  bool serve(const std::shared_ptr<Set>& set);
  // Ends the commands of requests that have ended. Whether there were some.
  bool collect();
  bool has_batches() const { return !batches_.empty(); }
  bool has_batches_of(const Set& set) const;
  // Whether a fault was to end the thread.
  bool is_over() const { return is_over_; }

 private:
  static constexpr std::size_t commands_at_once = 64;

  bool serve(const std::shared_ptr<Set>& set, std::uint32_t number);
  bool take(Set& set, Set::Queue& queue, const nvme::Command& command);
  void find_at_hand();
  void copy_at_hand(Set& set, Set::Queue& queue, std::span<Transfer> transfers);
  void begin_batches(const std::shared_ptr<Set>& set, std::uint32_t number, std::span<Transfer> left);
  bool spoil(Set::Queue& queue, const nvme::Command& command);
  bool is_spoilt(std::uint16_t cid, Fault fault) const;
  void complete(Set::Queue& queue, const Transfer& transfer);
  void count(Set& set, std::span<const Transfer> transfers, bool at_hand);

  const Context context_;
  const Place place_;
  const FaultPlan& faults_;
  HostWords words_;
  std::array<nvme::Command, commands_at_once> commands_;
  std::vector<Transfer> transfers_;
  std::vector<std::size_t> due_;  // to use again
  struct Spoilt {
    std::uint16_t cid;
    Fault fault;
  };
  std::vector<Spoilt> spoilt_;  // commands that were fetched, whose completions shall be
  std::vector<std::unique_ptr<Batch>> batches_;
  bool is_over_ = false;
};

}  // namespace penstock::gpu_queues
