// Buffer: owned memory of a Domain, page-aligned. Made by Context::allocate.
//
// Thread safety: a handle; the bytes are the user's to guard. Lifetime: may outlive the Context. Memory that an
// abandoned request may still touch is not returned to the system until the device has let go of it. GPU memory goes to
// whoever allocates next: let kernels that use it end first.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "penstock/region.h"

namespace penstock {

namespace memory {
class Allocation;
}

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
  std::unique_ptr<memory::Allocation> allocation_;
  Region region_;
};

}  // namespace penstock
