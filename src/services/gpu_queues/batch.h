// Batch: commands whose bytes are not at hand, as one request of the Context.
//
// The request reads into memory of the batch's own, and writes from it. A request that is abandoned may still touch
// that, and never the place of a command, which is used again as soon as the command has ended.
//
// Thread safety: one thread. Lifetime: holds what it needs of the set.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "services/gpu_queues/set.h"

namespace penstock::gpu_queues {

class Batch {
 public:
  static constexpr std::size_t transfers_limit = 64;  // as many failures as a Report names
  static constexpr std::uint64_t bytes_limit = 8 << 20;

  // Those from the front that go together: all read or all write, within the limits. They are sorted. REQUIRES: one at
  // least.
  static std::size_t choose(std::span<Transfer> transfers);
  // If the request can't be made, it has failed already.
  Batch(const Context& context, std::shared_ptr<Set> set, std::uint32_t queue, std::span<const Transfer> transfers);

  Set& set() const { return *set_; }
  std::uint32_t queue() const { return queue_; }
  bool ended() const { return !ticket_ || ticket_.ended(); }
  // Brings the bytes to their places, and says of each transfer whether that went well. REQUIRES: ended.
  std::span<const Transfer> finish();
  // Why some did not.
  nvme::StatusField failure() const { return failure_; }

 private:
  struct Stretch {
    const Source* source;
    std::uint64_t offset, bytes, memory_offset;
  };
  void plan();
  Status begin(const Context& context);
  std::byte* bytes_of(const Transfer& transfer, const Stretch& stretch) const {
    return memory_.data() + stretch.memory_offset + (transfer.offset - stretch.offset);
  }
  void fail(const Error& error);

  std::shared_ptr<Set> set_;  // shared with the server's threads: it may be closed meanwhile
  std::uint32_t queue_;
  std::vector<Transfer> transfers_;
  std::vector<Stretch> stretches_;
  std::vector<std::size_t> stretch_of_;  // by transfer
  Buffer memory_;
  Ticket ticket_;
  nvme::StatusField failure_;
};

}  // namespace penstock::gpu_queues
