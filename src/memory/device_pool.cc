#include "memory/device_pool.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"

namespace penstock::memory {

namespace {

constexpr std::uint64_t kept_most_bytes = 16 << 20;
// What the driver hands out anyway.
constexpr std::size_t granularity = 64 << 10;

using Kind = cuda::Quiet::Kind;

std::optional<DevicePool::Block> take_from(std::vector<DevicePool::Block>& blocks, std::size_t size_bytes) {
  const auto fits = [&](const DevicePool::Block& block) { return block.size_bytes == size_bytes; };
  const auto found = std::find_if(blocks.begin(), blocks.end(), fits);
  if (found == blocks.end()) return std::nullopt;
  const DevicePool::Block block = *found;
  blocks.erase(found);
  return block;
}

}  // namespace

Result<DevicePool::Block> DevicePool::take(std::size_t size_bytes) {
  if (size_bytes > SIZE_MAX - granularity) {
    return Error{Code::out_of_memory, 0, "allocate " + std::to_string(size_bytes) + " bytes on a GPU", "ask for less"};
  }
  const std::size_t size = (size_bytes + granularity - 1) / granularity * granularity;
  if (const auto kept = take_kept(size)) return *kept;
  if (auto block = allocate(size)) return block;
  // What others need no more may be of the wrong size, or not be back yet.
  trim(0);
  cuda::Quiet::of_process().catch_up();
  return allocate(size);
}

std::optional<DevicePool::Block> DevicePool::take_kept(std::size_t size_bytes) {
  const std::scoped_lock lock(mutex_);
  if (const auto block = take_from(kept_, size_bytes)) {
    kept_bytes_ -= size_bytes;
    return block;
  }
  const auto block = take_from(leaving_, size_bytes);
  if (block) cuda::Quiet::of_process().note_freed(Kind::device, size_bytes);
  return block;
}

Result<DevicePool::Block> DevicePool::allocate(std::size_t size_bytes) {
  {
    const std::scoped_lock lock(mutex_);
    for (std::vector<Block>* const list : {&kept_, &leaving_}) {
      if (list->capacity() <= block_count_) list->reserve(2 * (block_count_ + 1));
    }
    ++block_count_;
  }
  auto block = allocate_counted(size_bytes);
  if (!block) {
    const std::scoped_lock lock(mutex_);
    --block_count_;
  }
  return block;
}

Result<DevicePool::Block> DevicePool::allocate_counted(std::size_t size_bytes) {
  const std::string what = "allocate " + std::to_string(size_bytes) + " bytes on " + device_.info().domain.name();
  if (!budget_->charge(size_bytes)) {
    return Error{Code::over_budget, 0,
                 what + ": " + std::to_string(budget_->used_bytes()) + " of " + std::to_string(budget_->limit_bytes()) +
                     " bytes of the device budget are in use" + cuda::describe_unfreed(Kind::device),
                 "free buffers, or raise device_budget_bytes"};
  }
  const cuda::Current current(device_);
  cuda::CuDevicePtr address = 0;
  if (const auto result = device_.api().memory_allocate(&address, size_bytes); result != cuda::cu_success) {
    budget_->refund(size_bytes);
    Error error = device_.driver().error(result, what);
    error.message += cuda::describe_unfreed(Kind::device);
    return error;
  }
  return Block{cuda::device_pointer(address), size_bytes};
}

void DevicePool::give_back(const Block& block) {
  bool closed = false;
  {
    const std::scoped_lock lock(mutex_);
    kept_.push_back(block);
    kept_bytes_ += block.size_bytes;
    closed = closed_;
  }
  trim(closed ? 0 : kept_most_bytes);
}

void DevicePool::close() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  trim(0);
}

void DevicePool::trim(std::uint64_t kept_bytes) {
  cuda::Quiet& quiet = cuda::Quiet::of_process();
  {
    const std::scoped_lock lock(mutex_);
    auto first_kept = kept_.begin();
    for (; kept_bytes_ > kept_bytes; ++first_kept) {
      kept_bytes_ -= first_kept->size_bytes;
      quiet.note_unfreed(Kind::device, first_kept->size_bytes);
      leaving_.push_back(*first_kept);
    }
    kept_.erase(kept_.begin(), first_kept);
    if (leaving_.empty()) return;
  }
  quiet.defer(shared_from_this());
}

bool DevicePool::run() {
  Block block;
  {
    const std::scoped_lock lock(mutex_);
    if (leaving_.empty()) return false;
    block = leaving_.front();
    leaving_.erase(leaving_.begin());
    --block_count_;
  }
  {
    const cuda::Current current(device_);
    const auto result = device_.api().memory_free(cuda::device_address(block.data));
    const bool is_lost = cuda::code_from_result(result) == Code::device_lost;
    if (result != cuda::cu_success && !is_lost) {
      const Error error = or_out_of_memory([&] { return device_.driver().error(result, "free GPU memory"); });
      log(LogLevel::warning, error.message);
    }
  }
  budget_->refund(block.size_bytes);
  cuda::Quiet::of_process().note_freed(Kind::device, block.size_bytes);
  return true;
}

}  // namespace penstock::memory
