// ReadTeam: threads that help with long reads of cached bytes. The thread that begins a read works on it too, until it
// is over, so a read never waits for a thread to wake up.
//
// Helpers spin for a moment before they sleep, since reads come in runs, and wake each other, two at a time: to wake
// one takes a microsecond of the thread that does it. Each thread prefers the same parts of memory every time, which
// its processor's cache may still own: to take dirty lines from other caches halves the speed.
//
// Thread safety: begin and end from any threads; a TeamRead's work by its owner. Lifetime: no read is under way when
// the team is destroyed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/op.h"

namespace penstock::files {

// One read, a stretch at a time.
class TeamRead {
 public:
  // Reads by Path::cached only what is in the page cache, where the file system can tell: ends short at the first byte
  // that is not, or with EAGAIN if that is the first of all. REQUIRES: a read with Op::is_shared.
  explicit TeamRead(const engine::Op& op);
  TeamRead(const TeamRead&) = delete;
  TeamRead& operator=(const TeamRead&) = delete;

  // Reads a stretch, if one is left: first those that the worker of this number prefers.
  bool work(std::uint32_t worker, std::uint32_t workers);
  bool has_more() const { return taken_.load(std::memory_order_relaxed) != all_; }
  // Ends it without bytes: stretches that no thread has taken are not read.
  void cancel();
  bool is_over() const { return read_.load(std::memory_order_acquire) == count_; }
  std::uint32_t stretches() const { return count_; }
  const engine::Op& op() const { return op_; }
  // REQUIRES: it is over.
  engine::Done done() const;

 private:
  bool take(std::uint32_t stretch);
  void read(std::uint32_t stretch);
  // Stretches of the mask that no thread has taken are not read.
  void end_at(std::uint64_t gap, const engine::Done& why, std::uint64_t unwanted);

  const engine::Op op_;
  const std::uint64_t stretch_bytes_;  // stretches end at multiples of this in memory
  const std::uint64_t first_;          // number of the first stretch, from address 0
  const std::uint32_t count_;          // of stretches
  const std::uint64_t all_;            // a bit for each
  alignas(64) std::atomic<std::uint64_t> taken_{0};
  alignas(64) std::atomic<std::uint32_t> read_{0};
  std::mutex mutex_;       // guards what follows
  std::uint64_t end_;      // of what came without a gap
  engine::Done ended_by_;  // why it ends there
};

class ReadTeam {
 public:
  // Where helpers find a read. They count themselves in before they look again whether it is there, and its owner takes
  // it away before it waits for the count to be 0.
  struct alignas(64) Slot {
    std::atomic<bool> is_taken{false};  // by an owner, until no helper is there any more
    std::atomic<TeamRead*> read{nullptr};
    std::atomic<std::uint32_t> helpers{0};
  };

  explicit ReadTeam(std::uint32_t helpers_max) : helpers_max_(helpers_max) {}
  ~ReadTeam();
  ReadTeam(const ReadTeam&) = delete;
  ReadTeam& operator=(const ReadTeam&) = delete;

  // Helpers may work on the read from now on. Null where there are none, or enough reads already.
  Slot* begin(TeamRead& read);
  // No helper works on the read any more.
  static void end(Slot& slot);
  // The owner's share: a stretch, if one is left.
  bool work(TeamRead& read) const { return read.work(0, helpers_max_ + 1); }

 private:
  static constexpr std::size_t reads_max = 16;

  void help(std::uint32_t worker);
  bool help_with(Slot& slot, std::uint32_t worker);
  void start_helpers(std::uint32_t wanted);
  void wake_helpers();

  const std::uint32_t helpers_max_;
  std::array<Slot, reads_max> slots_;
  alignas(64) std::atomic<std::uint32_t> word_{0};  // changes with every read
  std::atomic<std::uint32_t> sleepers_{0};          // on that
  std::atomic<bool> stopping_{false};
  std::atomic<std::size_t> started_{0};  // threads
  std::mutex mutex_;                     // guards what follows
  std::vector<std::thread> threads_;
};

}  // namespace penstock::files
