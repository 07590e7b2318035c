#include "core/device_memory.h"

namespace penstock::core {

DeviceMemory::DeviceMemory(std::uint64_t budget_bytes)
    : budget_(std::make_shared<memory::Budget>(budget_bytes != 0 ? budget_bytes : UINT64_MAX)) {}

DeviceMemory::~DeviceMemory() {
  for (const auto& pool : pools_) pool->close();
}

Result<std::shared_ptr<memory::DevicePool>> DeviceMemory::pool(Domain domain) {
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const auto device = (*driver)->device(domain.device());
  if (!device) return device.error();
  const std::scoped_lock lock(mutex_);
  for (const auto& pool : pools_) {
    if (&pool->device() == *device) return pool;
  }
  return pools_.emplace_back(std::make_shared<memory::DevicePool>(**device, budget_));
}

}  // namespace penstock::core
