// VfioGroup: an IOMMU group that this process has, in a container of its own, and the memory that its devices reach.
//
// Thread safety: map and unmap from any thread. Lifetime: outlives the devices taken from it. Only one process, and in
// it only one VfioGroup, has a group at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "nvme/iova_allocator.h"
#include "nvme/pci.h"
#include "penstock/result.h"

namespace penstock::nvme {

class VfioGroup {
 public:
  // The group of a device. `folder` is where VFIO has its nodes.
  static Result<std::unique_ptr<VfioGroup>> open(const VfioPlace& place,
                                                 const std::filesystem::path& folder = "/dev/vfio");

  Result<UniqueFd> open_device(const std::string& address) const;

  // As of Transport.
  Result<std::uint64_t> map(std::byte* data, std::size_t size_bytes);
  void unmap(std::uint64_t address, std::size_t size_bytes);
  // Takes all memory away, whoever uses it; from now on nothing is mapped.
  Status unmap_all();

 private:
  VfioGroup(std::string name, UniqueFd container, UniqueFd group);
  Status join(const VfioPlace& place);
  Status learn_limits();
  Status unmap_one(std::uint64_t address, std::uint64_t size_bytes) const;

  const std::string name_;  // of the device that it was opened for
  const UniqueFd container_;
  const UniqueFd group_;

  std::mutex mutex_;  // guards what follows
  std::optional<IovaAllocator> addresses_;
  std::map<std::uint64_t, std::uint64_t> mappings_;  // size by address
  std::uint32_t mappings_left_ = UINT32_MAX;         // that the kernel allows; more than any has: it does not tell
  bool closed_ = false;
};

}  // namespace penstock::nvme
