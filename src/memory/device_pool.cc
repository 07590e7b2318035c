#include "memory/device_pool.h"

#include <algorithm>

#include "base/log.h"

namespace penstock::memory {

namespace {

constexpr std::uint64_t kept_most_bytes = 16 << 20;
// What the driver hands out anyway.
constexpr std::size_t granularity = 64 << 10;

}  // namespace

DevicePool::~DevicePool() {
  for (const Block& block : kept_) budget_->refund(block.size_bytes);
  const cuda::Current current(device_);
  for (const Block& block : kept_) device_.api().memory_free(cuda::device_address(block.data));
}

Result<DevicePool::Block> DevicePool::take(std::size_t size_bytes) {
  if (size_bytes > SIZE_MAX - granularity) {
    return Error{Code::out_of_memory, 0, "allocate " + std::to_string(size_bytes) + " bytes on a GPU", "ask for less"};
  }
  const std::size_t size = (size_bytes + granularity - 1) / granularity * granularity;
  const std::scoped_lock lock(mutex_);
  const auto fits = [&](const Block& block) { return block.size_bytes == size; };
  if (const auto found = std::find_if(kept_.begin(), kept_.end(), fits); found != kept_.end()) {
    const Block block = *found;
    kept_.erase(found);
    kept_bytes_ -= block.size_bytes;
    return block;
  }
  auto block = allocate(size);
  if (block || kept_.empty()) return block;
  trim(0);
  return allocate(size);
}

Result<DevicePool::Block> DevicePool::allocate(std::size_t size_bytes) {
  const std::string what = "allocate " + std::to_string(size_bytes) + " bytes on " + device_.info().domain.name();
  if (!budget_->charge(size_bytes)) {
    return Error{Code::over_budget, 0,
                 what + ": " + std::to_string(budget_->used_bytes()) + " of " + std::to_string(budget_->limit_bytes()) +
                     " bytes of the device budget are in use",
                 "free buffers, or raise device_budget_bytes"};
  }
  const cuda::Current current(device_);
  cuda::CuDevicePtr address = 0;
  if (const auto result = device_.api().memory_allocate(&address, size_bytes); result != cuda::cu_success) {
    budget_->refund(size_bytes);
    return device_.driver().error(result, what);
  }
  return Block{cuda::device_pointer(address), size_bytes};
}

void DevicePool::give_back(const Block& block) {
  const std::scoped_lock lock(mutex_);
  kept_.push_back(block);
  kept_bytes_ += block.size_bytes;
  trim(kept_most_bytes);
}

void DevicePool::trim(std::uint64_t bytes) {
  if (kept_bytes_ <= bytes || device_.stream_waits() != 0) return;
  const cuda::Current current(device_);
  while (kept_bytes_ > bytes) {
    const Block block = kept_.front();
    kept_.erase(kept_.begin());
    kept_bytes_ -= block.size_bytes;
    budget_->refund(block.size_bytes);
    const auto result = device_.api().memory_free(cuda::device_address(block.data));
    if (result != cuda::cu_success) log(LogLevel::warning, device_.driver().error(result, "free GPU memory").message);
  }
}

}  // namespace penstock::memory
