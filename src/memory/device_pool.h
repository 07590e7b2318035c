// DevicePool: memory of one GPU for a Context, under a budget. Small freed blocks are kept and used again. While a
// stream waits for us all are, because freeing may wait for that stream; the large ones go back when none waits.
//
// Thread safety: any thread. Lifetime: outlived by no block; allocations share it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "memory/budget.h"

namespace penstock::memory {

class DevicePool : public std::enable_shared_from_this<DevicePool> {
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
  std::optional<Block> take_kept(std::size_t size_bytes);
  Result<Block> allocate(std::size_t size_bytes);
  // Frees what is kept beyond `bytes`, the oldest first. REQUIRES: no stream waits.
  void trim(std::uint64_t bytes);

  cuda::Device& device_;
  const std::shared_ptr<Budget> budget_;
  std::mutex mutex_;
  std::vector<Block> kept_;
  std::uint64_t kept_bytes_ = 0;
  bool trims_later_ = false;
};

}  // namespace penstock::memory
