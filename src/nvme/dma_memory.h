// DmaMemory: whole pages that a controller can reach, zeroed.
//
// Thread safety: owned by one. Lifetime: not longer than its Transport; freed only when the controller can't reach it
// any more, or else left behind.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nvme/transport.h"
#include "penstock/result.h"

namespace penstock::nvme {

std::size_t system_page_bytes();

class DmaMemory {
 public:
  static Result<DmaMemory> create(Transport& transport, std::size_t size_bytes);
  DmaMemory() = default;
  DmaMemory(DmaMemory&& other) noexcept { swap(other); }
  DmaMemory& operator=(DmaMemory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DmaMemory();

  std::byte* data() const { return data_; }
  std::uint64_t address() const { return address_; }
  std::size_t size_bytes() const { return size_bytes_; }
  // Never frees it: a controller that nothing could stop may still write there.
  void leave_behind() { transport_ = nullptr; }

 private:
  void swap(DmaMemory& other) noexcept;

  Transport* transport_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t address_ = 0;
  std::size_t size_bytes_ = 0;
};

}  // namespace penstock::nvme
