// DevicePool: memory of one GPU for a Context, under a budget. Small freed blocks are kept and used again. What is more
// than that leaves: Quiet's thread frees it, since that waits for all that the GPU is doing. Until then it is used
// again too, and counts against the budget.
//
// Thread safety: any thread. Lifetime: outlived by no block; allocations share it, and Quiet while it has to free some.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "cuda/quiet.h"
#include "memory/budget.h"

namespace penstock::memory {

class DevicePool : public cuda::Deferred, public std::enable_shared_from_this<DevicePool> {
 public:
  DevicePool(cuda::Device& device, std::shared_ptr<Budget> budget) : device_(device), budget_(std::move(budget)) {}

  struct Block {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
  };
  Result<Block> take(std::size_t size_bytes);
  void give_back(const Block& block);
  // Keeps nothing from now on.
  void close();

  cuda::Device& device() const { return device_; }

 private:
  // Frees one of those that leave.
  bool run() override;
  std::optional<Block> take_kept(std::size_t size_bytes);
  Result<Block> allocate(std::size_t size_bytes);
  Result<Block> allocate_counted(std::size_t size_bytes);
  // Lets those leave that are more than are kept, or all.
  void trim(std::uint64_t kept_bytes);

  cuda::Device& device_;
  const std::shared_ptr<Budget> budget_;
  std::mutex mutex_;
  bool closed_ = false;
  std::size_t block_count_ = 0;  // in use or not; the lists have room for all of them
  std::vector<Block> kept_;
  std::uint64_t kept_bytes_ = 0;
  std::vector<Block> leaving_;
};

}  // namespace penstock::memory
