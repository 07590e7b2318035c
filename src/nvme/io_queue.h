// IoQueue: one I/O queue pair of a Controller, for one thread: operations of any length in, completions out.
//
// Cuts operations into commands that the controller allows, keeps as many in flight as the pair holds, and looks after
// their deadlines. All blocks that a command names are checked here against the Namespace, whatever the caller did.
//
// Thread safety: one thread uses an IoQueue. Lifetime: destroyed when nothing is in flight, before its Controller.
// Nothing is allocated for an operation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nvme/controller.h"
#include "penstock/error.h"
#include "penstock/prp.h"

namespace penstock::nvme {

enum class IoKind : std::uint8_t { read, write, flush, zero, deallocate };

struct Io {
  IoKind kind = IoKind::read;
  const Namespace* space = nullptr;  // outlives the operation
  std::uint64_t offset = 0;          // in bytes; with the length in whole blocks
  std::uint64_t length = 0;
  std::uint64_t address = 0;  // of reads and writes: the I/O address of the memory, a multiple of 4
  std::uint64_t cookie = 0;
};

struct IoDone {
  std::uint64_t cookie = 0;
  std::uint64_t bytes = 0;  // from the start; with an error: 0
  Code code = Code::ok;
  std::int32_t system_error = 0;  // EAGAIN for what may be tried again, or as number_of
};

class IoQueue {
 public:
  ~IoQueue();
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // Takes operations from the front and returns how many; the commands go out with one doorbell.
  std::size_t submit(std::span<const Io> ios);
  // What has ended; never sleeps, but may climb the Controller's ladder.
  std::size_t poll(std::span<IoDone> done);
  // Commands that were not sent yet are not sent any more; the operation comes back soon, whole or not.
  void cancel(std::uint64_t cookie);

  std::size_t in_flight() const { return live_ops_; }
  // What becomes readable when there may be something to poll; nothing where the transport has no interrupts.
  std::optional<int> interrupt() const { return interrupt_; }
  // For callers who slept: acknowledges the interrupt, and looks whether the controller is still there.
  void after_sleep();
  // When a poll is due in any case.
  TimePoint next_deadline();
  // The controller can't be stopped: what is in flight never ends.
  bool is_stuck() { return pair().is_poisoned() && controller_.is_unstoppable(); }

  // For tests and measurements.
  const QueuePairState& state() const { return state_; }

 private:
  friend class Controller;
  // An operation, in bytes; a flush counts as one. What is sent of it is a prefix; what went well of that is one too.
  struct Op {
    Io io;
    std::uint64_t sent = 0;
    std::uint64_t end = 0;       // what is to be sent
    std::uint64_t good = 0;      // where the first failure begins, or the length
    std::uint32_t commands = 0;  // on their way
    StatusField failure;
    bool live = false;
  };
  struct CommandRecord : Token {
    std::uint32_t op = 0;
    std::uint64_t offset = 0;  // within the operation
    std::uint64_t sent = 0;    // with which batch, from 1 on; 0: not in flight
  };
  // Hears of every command that ends.
  class Platform : public CpuPlatform {
   public:
    Platform(const Registers& registers, std::vector<CommandRecord*>& ended) : CpuPlatform(registers), ended_(ended) {}
    void completed(Token* token) { ended_.push_back(static_cast<CommandRecord*>(token)); }

   private:
    std::vector<CommandRecord*>& ended_;
  };
  using Pair = QueuePair<Platform>;

  static Result<std::unique_ptr<IoQueue>> create(Controller& controller, std::uint16_t id);
  IoQueue(Controller& controller, std::uint16_t id);
  Status allocate();
  Pair pair() { return {state_, platform_}; }

  std::optional<Code> refusal(const Io& io) const;
  void cut_waiting();
  bool cut(Op& op, std::uint32_t index);
  std::uint64_t longest_transfer(const Io& io) const;
  std::uint64_t longest_without_data(const Io& io) const;
  void make_command(const Op& op, std::uint32_t record, std::uint64_t length, Command& command);
  void send();
  void take_ended();
  void send_no_more(std::uint32_t op);
  void end_if_complete(std::uint32_t op);
  void give_up();
  PrpListMemory list_of(std::uint32_t record) const;

  Controller& controller_;
  const std::uint16_t id_;
  Registers registers_;
  DmaMemory memory_;                      // submissions, completions, a page of zeros, then a list for each command
  std::uint64_t page_bytes_ = 0;          // as the controller's
  std::uint64_t max_transfer_bytes_ = 0;  // likewise
  std::size_t lists_at_ = 0;
  std::size_t zeros_at_ = 0;
  std::size_t list_bytes_ = 0;
  std::vector<Slot> slots_;
  QueuePairState state_;
  Platform platform_;
  std::optional<int> interrupt_;
  bool registered_ = false;  // in the Controller's list: it ever was at the controller
  bool created_ = false;     // at the controller; both guarded by its lock

  std::vector<Op> ops_;
  std::vector<std::uint32_t> free_ops_;
  std::vector<std::uint32_t> to_send_;  // operations that are not wholly sent, oldest first
  std::vector<CommandRecord> commands_;
  std::vector<std::uint32_t> free_commands_;
  std::vector<Submission> batch_;  // the first of them made, and not taken by the pair yet
  std::uint32_t batched_ = 0;
  std::vector<CommandRecord*> ended_;  // told by the pair
  std::vector<IoDone> done_;           // and not yet taken by the caller
  // A batch of commands on its way.
  struct Sent {
    TimePoint deadline{};
    std::uint32_t left = 0;
  };
  const Sent& oldest_sent() const { return sent_[first_sent_ & (sent_.size() - 1)]; }
  // A ring, in order of deadlines, batches that have ended included: a slot is used again only when its command has
  // ended, so fewer than the pair has slots are younger than the oldest.
  std::vector<Sent> sent_;
  std::uint64_t first_sent_ = 0;
  std::uint64_t next_sent_ = 0;
  std::size_t live_ops_ = 0;
  TimePoint next_look_{};
};

}  // namespace penstock::nvme
