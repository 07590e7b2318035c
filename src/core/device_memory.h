// DeviceMemory: the pools of a Context, one for each GPU in use, under one budget.
//
// Thread safety: any thread. Lifetime: its Context's; Buffers keep their pool beyond that.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

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
  std::uint64_t used_bytes() const { return budget_->used_bytes(); }

 private:
  const std::shared_ptr<memory::Budget> budget_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<memory::DevicePool>> pools_;
};

}  // namespace penstock::core
