// RamBackend: blocks in memory of this process, gone with it.
//
// Thread safety and lifetime: as BlockBackend; bytes() while no operation runs.
#pragma once

#include <array>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "nvme/block_backend.h"

namespace penstock::nvme {

class RamBackend : public BlockBackend {
 public:
  // REQUIRES: a multiple of 4096.
  explicit RamBackend(std::uint64_t size_bytes) : bytes_(size_bytes) {}

  std::vector<std::byte>& bytes() { return bytes_; }

  std::uint64_t size_bytes() const override { return bytes_.size(); }
  bool submit(const BlockOp& op) override;
  std::size_t poll(std::span<BlockDone> done, TimePoint deadline) override;
  void wake() override;

 private:
  static constexpr std::size_t depth = 64;

  std::vector<std::byte> bytes_;
  std::array<BlockDone, depth> done_{};
  std::size_t done_count_ = 0;

  std::mutex mutex_;
  std::condition_variable woken_changed_;
  bool woken_ = false;
};

}  // namespace penstock::nvme
