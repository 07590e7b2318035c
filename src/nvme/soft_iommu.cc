#include "nvme/soft_iommu.h"

#include <iterator>

namespace penstock::nvme {

void Breaches::add(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (list_.size() < most) list_.push_back(what);
}

std::vector<std::string> Breaches::list() const {
  const std::lock_guard lock(mutex_);
  return list_;
}

std::uint64_t SoftIommu::map(std::byte* data, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t address = next_;
  next_ = (next_ + size_bytes + 2 * gap_bytes - 1) / gap_bytes * gap_bytes;
  mappings_[address] = {data, size_bytes, 0};
  return address;
}

std::byte* SoftIommu::unmap(std::uint64_t address, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.size_bytes != size_bytes) {
    breaches_.add("memory was unmapped that was not mapped so");
    return nullptr;
  }
  if (found->second.users != 0 && !closed_) breaches_.add("memory was unmapped while a command used it");
  std::byte* const data = found->second.data;
  mappings_.erase(found);
  return data;
}

void SoftIommu::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

std::byte* SoftIommu::use(std::uint64_t address, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin() || closed_) return nullptr;
  auto& [begin, mapping] = *std::prev(after);
  const std::uint64_t offset = address - begin;
  if (offset > mapping.size_bytes || size_bytes > mapping.size_bytes - offset) return nullptr;
  ++mapping.users;
  return mapping.data + offset;
}

void SoftIommu::release(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  const auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return;
  auto& [begin, mapping] = *std::prev(after);
  // Not that of its neighbour, if it was unmapped meanwhile.
  if (address - begin < mapping.size_bytes && mapping.users > 0) --mapping.users;
}

}  // namespace penstock::nvme
