#include "memory/device_pool.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cuda/quiet.h"

namespace penstock::memory {

namespace {

constexpr std::uint64_t kept_most_bytes = 16 << 20;
// What the driver hands out anyway.
constexpr std::size_t granularity = 64 << 10;

void free_blocks(cuda::Device& device, Budget& budget, const std::vector<DevicePool::Block>& blocks) {
  const cuda::Current current(device);
  for (const DevicePool::Block& block : blocks) {
    const auto result = device.api().memory_free(cuda::device_address(block.data));
    const bool is_lost = cuda::code_from_result(result) == Code::device_lost;
    if (result != cuda::cu_success && !is_lost) {
      log(LogLevel::warning, device.driver().error(result, "free GPU memory").message);
    }
    budget.refund(block.size_bytes);
  }
}

}  // namespace

DevicePool::~DevicePool() {
  if (kept_.empty()) return;
  cuda::Quiet::of_process().run_later(
      [&device = device_, budget = budget_, blocks = std::move(kept_)] { free_blocks(device, *budget, blocks); });
}

Result<DevicePool::Block> DevicePool::take(std::size_t size_bytes) {
  if (size_bytes > SIZE_MAX - granularity) {
    return Error{Code::out_of_memory, 0, "allocate " + std::to_string(size_bytes) + " bytes on a GPU", "ask for less"};
  }
  const std::size_t size = (size_bytes + granularity - 1) / granularity * granularity;
  if (const auto kept = take_kept(size)) return *kept;
  auto block = allocate(size);
  if (block || !cuda::Quiet::of_process().run([this] { trim(0); })) return block;
  return allocate(size);
}

std::optional<DevicePool::Block> DevicePool::take_kept(std::size_t size_bytes) {
  const std::scoped_lock lock(mutex_);
  const auto fits = [&](const Block& block) { return block.size_bytes == size_bytes; };
  const auto found = std::find_if(kept_.begin(), kept_.end(), fits);
  if (found == kept_.end()) return std::nullopt;
  const Block block = *found;
  kept_.erase(found);
  kept_bytes_ -= block.size_bytes;
  return block;
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
  {
    const std::scoped_lock lock(mutex_);
    kept_.push_back(block);
    kept_bytes_ += block.size_bytes;
    if (kept_bytes_ <= kept_most_bytes || std::exchange(trims_later_, true)) return;
  }
  cuda::Quiet::of_process().run_later([pool = shared_from_this()] { pool->trim(kept_most_bytes); });
}

void DevicePool::trim(std::uint64_t bytes) {
  std::vector<Block> blocks;
  {
    const std::scoped_lock lock(mutex_);
    trims_later_ = false;
    auto first_kept = kept_.begin();
    for (; kept_bytes_ > bytes; ++first_kept) kept_bytes_ -= first_kept->size_bytes;
    blocks.assign(kept_.begin(), first_kept);
    kept_.erase(kept_.begin(), first_kept);
  }
  free_blocks(device_, *budget_, blocks);
}

}  // namespace penstock::memory
