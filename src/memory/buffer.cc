#include "penstock/buffer.h"

#include <utility>

#include "memory/allocation.h"
#include "memory/live_buffers.h"

namespace penstock {

Buffer::Buffer() = default;

Buffer::Buffer(std::unique_ptr<memory::Allocation> allocation) {
  if (!allocation) return;
  region_ = allocation->region();
  allocation_ = memory::LiveBuffers::of_process().add(std::move(allocation));
}

Buffer memory::make_buffer(std::unique_ptr<memory::Allocation> allocation) {
  return Buffer(std::move(allocation));
}

Buffer::Buffer(Buffer&& other) noexcept
    : allocation_(std::move(other.allocation_)), region_(std::exchange(other.region_, Region{})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(allocation_, taken.allocation_);
  std::swap(region_, taken.region_);
  return *this;
}

Buffer::~Buffer() = default;

std::shared_ptr<const void> hold_memory(Region memory) {
  return memory.size_bytes != 0 ? memory::LiveBuffers::of_process().find(memory.data).held : nullptr;
}

}  // namespace penstock
