#include "core/device_memory.h"

namespace penstock::core {

DeviceMemory::DeviceMemory(std::uint64_t budget_bytes)
    : budget_(std::make_shared<memory::Budget>(budget_bytes != 0 ? budget_bytes : UINT64_MAX)) {}

DeviceMemory::~DeviceMemory() {
  for (const OfGpu& one : gpus_) one.pool->close();
}

Result<std::shared_ptr<memory::DevicePool>> DeviceMemory::pool(Domain domain) {
  auto gpu = of(domain);
  if (!gpu) return std::move(gpu).error();
  return std::move(gpu->pool);
}

Result<std::unique_ptr<memory::Allocation>> DeviceMemory::scratch(Domain domain, std::uint64_t bytes) {
  auto gpu = of(domain);
  if (!gpu) return std::move(gpu).error();
  if (!gpu->scratches->charge(bytes)) {
    return Error{Code::over_budget, 0, "other lanes have the scratch memory of " + domain.name(), ""};
  }
  auto made = memory::Allocation::create({.domain = domain, .size_bytes = bytes, .pool = gpu->pool});
  if (!made) {
    gpu->scratches->refund(bytes);
    return made;
  }
  (*made)->on_free(this, [scratches = gpu->scratches, bytes] { scratches->refund(bytes); });
  return made;
}

Result<DeviceMemory::OfGpu> DeviceMemory::of(Domain domain) {
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const auto device = (*driver)->device(domain.device());
  if (!device) return device.error();
  const std::scoped_lock lock(mutex_);
  for (const OfGpu& one : gpus_) {
    if (&one.pool->device() == *device) return one;
  }
  return gpus_.emplace_back(OfGpu{std::make_shared<memory::DevicePool>(**device, budget_),
                                  std::make_shared<memory::Budget>(scratch_bytes_most)});
}

}  // namespace penstock::core
