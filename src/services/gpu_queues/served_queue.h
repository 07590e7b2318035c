// ServedQueue: the controller's side of a queue pair in memory (penstock/queue_pair.h): takes commands, posts
// completions.
//
// What the other side writes is believed only as far as it can do no harm: a tail that can't be is ignored, and no more
// commands are taken than the queue holds.
//
// Thread safety: one thread at a time. Lifetime: the memory outlives it. The Platform is one of queue_pair.h's, of
// which only loads and stores are used.
#pragma once

#include <cstdint>
#include <span>

#include "penstock/queue_pair.h"

namespace penstock::gpu_queues {

// Words that are shared with GPUs, for a thread of the CPU.
struct HostWords {
  template <typename T>
  static T load_acquire(const T& word) {
    return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
  }
  template <typename T>
  static void store_release(T& word, T value) {
    __atomic_store_n(&word, value, __ATOMIC_RELEASE);
  }
};

template <typename Platform = HostWords>
class ServedQueue {
 public:
  // Addresses as the CPU sees them; slots are the other side's.
  explicit ServedQueue(const nvme::QueuePairMemory& memory) : memory_(memory) {}

  // As many as there are and have room.
  std::uint32_t fetch(Platform& platform, std::span<nvme::Command> commands) {
    const std::uint32_t tail = platform.load_acquire(*memory_.tail_doorbell);
    if (tail >= memory_.entries) return 0;
    const std::uint64_t in_flight = fetched_ - ended_;
    std::uint32_t count = 0;
    while (at(fetched_) != tail && count < commands.size() && in_flight + count < memory_.entries - 1) {
      commands[count++] = memory_.submissions[at(fetched_)];
      ++fetched_;
    }
    return count;
  }

  // Ends a command that was fetched; with the head as it is, or as it was when that was fetched.
  void complete(Platform& platform, std::uint16_t cid, nvme::StatusField field) {
    complete(platform, cid, field, fetched_);
  }
  void complete(Platform& platform, std::uint16_t cid, nvme::StatusField field, std::uint64_t head) {
    ++ended_;
    post(platform, cid, field, at(head), true);
  }

  // What a controller that lies would post: any identifier, any head, or a phase that is not due.
  void post(Platform& platform, std::uint16_t cid, nvme::StatusField field, std::uint32_t head, bool is_due) {
    nvme::Completion& entry = memory_.completions[posted_ & (memory_.completion_entries - 1)];
    const bool phase = ((posted_ & memory_.completion_entries) == 0) == is_due;
    entry.result = 0;
    entry.submission = std::uint32_t{memory_.id} << 16 | head;
    platform.store_release(entry.status, nvme::Completion::pack(cid, phase, field));
    if (is_due) ++posted_;
  }

  std::uint64_t in_flight() const { return fetched_ - ended_; }
  std::uint32_t head() const { return at(fetched_); }
  // Of the command that is fetched next.
  std::uint16_t next_cid() const { return static_cast<std::uint16_t>(fetched_ & 0x7fff); }

 private:
  std::uint32_t at(std::uint64_t ticket) const { return static_cast<std::uint32_t>(ticket) & (memory_.entries - 1); }

  nvme::QueuePairMemory memory_;
  std::uint64_t fetched_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t posted_ = 0;
};

}  // namespace penstock::gpu_queues
