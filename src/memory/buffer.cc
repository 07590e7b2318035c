#include "penstock/buffer.h"

#include <utility>

#include "memory/allocation.h"

namespace penstock {

Buffer::Buffer() = default;

Buffer::Buffer(std::unique_ptr<memory::Allocation> allocation) : allocation_(std::move(allocation)) {
  if (allocation_) region_ = allocation_->region();
}

Buffer::Buffer(Buffer&& other) noexcept
    : allocation_(std::move(other.allocation_)), region_(std::exchange(other.region_, Region{})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(allocation_, other.allocation_);
  std::swap(region_, other.region_);
  return *this;
}

Buffer::~Buffer() {
  if (!allocation_) return;
  const auto quarantine = allocation_->quarantine();
  quarantine->dispose(std::move(allocation_));
}

}  // namespace penstock
