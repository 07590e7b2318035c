// Buffer: owned memory of a Domain, page-aligned. Made by Context::allocate.
//
// Thread safety: a handle; guard the bytes yourself. Lifetime: it may outlive the Context, and be moved or destroyed
// while requests use it: they hold its memory until they have ended, and longer if an abandoned operation may still
// touch it. Only then does it go back to the system and its budget. Freed GPU memory goes to the next allocation: let
// kernels that use it end first.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "penstock/region.h"

namespace penstock {

class Buffer;

namespace memory {
class Allocation;
Buffer make_buffer(std::unique_ptr<Allocation> allocation);
}  // namespace memory

// Default-constructed or moved from, it is empty.
class PENSTOCK_EXPORT Buffer {
 public:
  Buffer();
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  Region region() const { return region_; }
  std::byte* data() const { return region_.data; }
  std::size_t size_bytes() const { return region_.size_bytes; }
  std::span<std::byte> bytes() const { return {region_.data, region_.size_bytes}; }

 private:
  friend Buffer memory::make_buffer(std::unique_ptr<memory::Allocation> allocation);
  explicit Buffer(std::unique_ptr<memory::Allocation> allocation);

  std::shared_ptr<const memory::Allocation> allocation_;  // shared: with requests in flight
  Region region_;
};

// For your own work on memory that may lie in a Buffer: that memory stays as long as the result lives. Null for memory
// outside of Buffers.
PENSTOCK_EXPORT std::shared_ptr<const void> hold_memory(Region memory);

}  // namespace penstock
