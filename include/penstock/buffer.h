// Buffer: owned memory of a Domain, page-aligned. Made by Context::allocate.
//
// Thread safety: a handle; the bytes are the user's to guard. Lifetime: may outlive the Context, and be moved or
// destroyed while requests use it: those hold its memory until they have ended, and longer where an abandoned operation
// may still touch it. Only then it goes back to the system, and to its budget. GPU memory goes to whoever allocates
// next: let kernels that use it end first.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "penstock/region.h"

namespace penstock {

namespace memory {
class Allocation;
}

// Made by default, or moved from: empty.
class PENSTOCK_EXPORT Buffer {
 public:
  Buffer();
  explicit Buffer(std::unique_ptr<memory::Allocation> allocation);
  Buffer(Buffer&&) noexcept;
  Buffer& operator=(Buffer&&) noexcept;
  ~Buffer();

  Region region() const { return region_; }
  std::byte* data() const { return region_.data; }
  std::size_t size_bytes() const { return region_.size_bytes; }
  std::span<std::byte> bytes() const { return {region_.data, region_.size_bytes}; }

 private:
  std::shared_ptr<const memory::Allocation> allocation_;  // shared: with requests in flight
  Region region_;
};

// For work of the caller's own on memory that may lie in a Buffer: as long as the result lives, that memory stays. Null
// for memory that is no Buffer's.
PENSTOCK_EXPORT std::shared_ptr<const void> hold_memory(Region memory);

}  // namespace penstock
