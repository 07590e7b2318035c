// DeviceMemory: the pools of a Context, one for each GPU in use, under one budget.
//
// Thread safety: any thread. Lifetime: its Context's; Buffers keep their pool beyond that.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "memory/allocation.h"
#include "memory/device_pool.h"

namespace penstock::core {

class DeviceMemory {
 public:
  // 0: no limit.
  explicit DeviceMemory(std::uint64_t budget_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  Result<std::shared_ptr<memory::DevicePool>> pool(Domain domain);
  // For a lane, where kernels find stored bytes. All of a GPU's together have scratch_bytes_most; Code::over_budget
  // beyond that.
  static constexpr std::uint64_t scratch_bytes_most = 32 << 20;
  Result<std::unique_ptr<memory::Allocation>> scratch(Domain domain, std::uint64_t bytes);
  std::uint64_t used_bytes() const { return budget_->used_bytes(); }

 private:
  const std::shared_ptr<memory::Budget> budget_;
  std::mutex mutex_;
  struct OfGpu {
    std::shared_ptr<memory::DevicePool> pool;
    std::shared_ptr<memory::Budget> scratches;  // shared with the scratches: a lane may be left behind with one
  };
  Result<OfGpu> of(Domain domain);
  std::vector<OfGpu> gpus_;
};

}  // namespace penstock::core
