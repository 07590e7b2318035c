#include "nvme/iova_allocator.h"

#include <algorithm>
#include <iterator>

namespace penstock::nvme {

IovaAllocator::IovaAllocator(std::span<const IovaRange> usable, std::uint64_t page_bytes) {
  for (const IovaRange& range : usable) {
    if (range.last < page_bytes) continue;
    const std::uint64_t begin = std::max(range.first, page_bytes);
    const std::uint64_t first = (begin + page_bytes - 1) & ~(page_bytes - 1);
    const std::uint64_t end = (range.last + 1) & ~(page_bytes - 1);  // 0: where addresses end
    if (first < begin || end - 1 < first) continue;
    release(first, end - first);
  }
}

std::optional<std::uint64_t> IovaAllocator::allocate(std::uint64_t size_bytes, std::uint64_t alignment) {
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [first, last] = *range;
    const std::uint64_t address = (first + alignment - 1) & ~(alignment - 1);
    if (address < first || address > last || size_bytes - 1 > last - address) continue;
    const std::uint64_t address_last = address + (size_bytes - 1);
    free_.erase(range);
    if (address > first) free_[first] = address - 1;
    if (address_last < last) free_[address_last + 1] = last;
    return address;
  }
  return std::nullopt;
}

// Grows its neighbours, if it touches them.
void IovaAllocator::release(std::uint64_t address, std::uint64_t size_bytes) {
  std::uint64_t first = address;
  std::uint64_t last = address + (size_bytes - 1);
  auto after = free_.upper_bound(address);
  if (after != free_.end() && after->first - 1 == last) {
    last = after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->second + 1 == first) {
      first = before->first;
      free_.erase(before);
    }
  }
  free_[first] = last;
}

std::uint64_t IovaAllocator::free_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [first, last] : free_) bytes += last - first + 1;
  return bytes;
}

}  // namespace penstock::nvme
