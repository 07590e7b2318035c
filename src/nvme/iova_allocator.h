// IovaAllocator: which addresses a device sees memory at, out of those that its IOMMU can translate.
//
// Address 0 is never given out, so that a forgotten address is an error and not a page of somebody's.
//
// Thread safety: none. Lifetime: a value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

namespace penstock::nvme {

// Both ends belong to it: a range may end with the last address there is.
struct IovaRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

class IovaAllocator {
 public:
  // Out of `usable`, in whole pages. REQUIRES: page_bytes is a power of two.
  IovaAllocator(std::span<const IovaRange> usable, std::uint64_t page_bytes);

  // The lowest free place of that size, at a multiple of the alignment; nothing if there is none.
  // REQUIRES: the size is a multiple of the page and not 0; the alignment is a power of two, a page at least.
  std::optional<std::uint64_t> allocate(std::uint64_t size_bytes, std::uint64_t alignment);
  // REQUIRES: allocated, whole.
  void release(std::uint64_t address, std::uint64_t size_bytes);

  std::uint64_t free_bytes() const;

 private:
  std::map<std::uint64_t, std::uint64_t> free_;  // last by first; no two of them touch
};

}  // namespace penstock::nvme
