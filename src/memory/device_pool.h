// DevicePool: memory of one GPU for a Context, under a budget. Small freed blocks are kept and used again; nothing is
// freed while a stream waits for us, because freeing may wait for that stream.
//
// Thread safety: any thread. Lifetime: outlived by no block; allocations share it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/driver.h"
#include "memory/budget.h"

namespace penstock::memory {

class DevicePool {
 public:
  DevicePool(cuda::Device& device, std::shared_ptr<Budget> budget) : device_(device), budget_(std::move(budget)) {}
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  struct Block {
    std::byte* data = nullptr;
    std::size_t size_bytes = 0;
  };
  Result<Block> take(std::size_t size_bytes);
  void give_back(const Block& block);

  cuda::Device& device() const { return device_; }

 private:
  Result<Block> allocate(std::size_t size_bytes);
  // Lets go of what is kept beyond `bytes`, the oldest first, if that may be done now.
  void trim(std::uint64_t bytes);

  cuda::Device& device_;
  const std::shared_ptr<Budget> budget_;
  std::mutex mutex_;
  std::vector<Block> kept_;
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace penstock::memory
