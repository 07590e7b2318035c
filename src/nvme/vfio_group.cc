#include "nvme/vfio_group.h"

#include <fcntl.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/log.h"
#include "nvme/dma_memory.h"
#include "nvme/vfio_answer.h"

namespace penstock::nvme {
namespace {

// Kernels before 5.4 don't tell what is reserved: beyond 4 GiB nothing is, and every IOMMU translates 39 bits.
constexpr IovaRange cautious_range{std::uint64_t{1} << 32, (std::uint64_t{1} << 39) - 1};
constexpr std::uint64_t large_page = 2 << 20;

Error not_openable(int error_number, const std::string& path, const std::string& address) {
  switch (error_number) {
    case ENOENT:
    case ENODEV:
      return system_error(error_number, "open " + path,
                          "load the driver: modprobe vfio-pci; then `penstock nvme bind " + address + "`");
    case EACCES:
    case EPERM:
      return system_error(error_number, "open " + path,
                          "give it to the user who runs this: chown USER " + path + ", or run as root");
    case EBUSY:
      return {Code::in_use, EBUSY,
              path + " is in use: another process, or this one, drives " + address + " or a device of its IOMMU group",
              "end that first"};
    default:
      return system_error(error_number, "open " + path);
  }
}

Result<UniqueFd> open_node(const std::string& path, const std::string& address) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return not_openable(errno, path, address);
  return fd;
}

std::string neighbours_text(const VfioPlace& place) {
  std::string text;
  for (const PciNeighbour& one : place.neighbours) {
    text += (text.empty() ? "" : ", ") + one.address + " (" + (one.driver.empty() ? "no driver" : one.driver) + ")";
  }
  return text;
}

std::vector<IovaRange> usable_ranges(const VfioAnswer<vfio_iommu_type1_info>& info) {
  const auto capability = info.capability(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE);
  using Head = vfio_iommu_type1_info_cap_iova_range;
  std::uint32_t count = 0;
  if (!read_at(capability, offsetof(Head, nr_iovas), count)) return {cautious_range};
  std::vector<IovaRange> ranges;
  vfio_iova_range range{};
  for (std::uint32_t i = 0; i < count && read_at(capability, sizeof(Head) + i * sizeof range, range); ++i) {
    if (range.start <= range.end) ranges.push_back({range.start, range.end});
  }
  return ranges;
}

}  // namespace

Result<std::unique_ptr<VfioGroup>> VfioGroup::open(const VfioPlace& place, const std::filesystem::path& folder) {
  auto container = open_node(folder / "vfio", place.address);
  if (!container) return std::move(container).error();
  auto group = open_node(folder / place.group, place.address);
  if (!group) return std::move(group).error();
  std::unique_ptr<VfioGroup> made(new VfioGroup(place.address, std::move(*container), std::move(*group)));
  if (auto status = made->join(place); !status) return std::move(status).error();
  if (auto status = made->learn_limits(); !status) return std::move(status).error();
  return made;
}

VfioGroup::VfioGroup(std::string name, UniqueFd container, UniqueFd group)
    : name_(std::move(name)), container_(std::move(container)), group_(std::move(group)) {}

Status VfioGroup::join(const VfioPlace& place) {
  const int version = ::ioctl(container_.get(), VFIO_GET_API_VERSION);
  if (version != VFIO_API_VERSION || ::ioctl(container_.get(), VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) != 1) {
    return Error{Code::unsupported, 0, "this kernel's VFIO has no IOMMU of type 1, version 2",
                 "load its driver: modprobe vfio_iommu_type1"};
  }
  vfio_group_status status{.argsz = sizeof status, .flags = 0};
  const std::string group = "IOMMU group " + place.group;
  if (::ioctl(group_.get(), VFIO_GROUP_GET_STATUS, &status) != 0) return system_error(errno, "ask for " + group);
  if ((status.flags & VFIO_GROUP_FLAGS_VIABLE) == 0) {
    return Error{Code::in_use, 0,
                 group + " can't be taken: the kernel uses other devices of it, " + neighbours_text(place),
                 "bind them to vfio-pci too, or move " + place.address + " to another slot"};
  }
  const int container = container_.get();
  if (::ioctl(group_.get(), VFIO_GROUP_SET_CONTAINER, &container) != 0) return system_error(errno, "open " + group);
  if (::ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU) != 0) {
    return system_error(errno, "set up the IOMMU for " + group,
                        "if the kernel log mentions interrupt remapping, see docs/nvme.md");
  }
  return {};
}

Status VfioGroup::learn_limits() {
  auto info = VfioAnswer<vfio_iommu_type1_info>::ask(container_.get(), VFIO_IOMMU_GET_INFO, {},
                                                     "ask the IOMMU of " + name_ + " what it can do");
  if (!info) return std::move(info).error();
  const std::uint64_t page = system_page_bytes();
  if (((*info)->flags & VFIO_IOMMU_INFO_PGSIZES) != 0 && ((*info)->iova_pgsizes & (2 * page - 1)) == 0) {
    return Error{Code::unsupported, 0, "the IOMMU of " + name_ + " can't map pages as small as the system's",
                 "use a kernel with larger pages"};
  }
  const bool tells = ((*info)->flags & VFIO_IOMMU_INFO_CAPS) != 0;
  const std::vector<IovaRange> ranges = tells ? usable_ranges(*info) : std::vector{cautious_range};
  addresses_.emplace(ranges, page);
  if (!tells) return {};
  vfio_iommu_type1_info_dma_avail left{};
  if (read_at(info->capability(VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL), 0, left)) mappings_left_ = left.avail;
  return {};
}

Result<UniqueFd> VfioGroup::open_device(const std::string& address) const {
  UniqueFd fd(::ioctl(group_.get(), VFIO_GROUP_GET_DEVICE_FD, address.c_str()));
  if (!fd) return system_error(errno, "open " + address + " through VFIO");
  return fd;
}

Result<std::uint64_t> VfioGroup::map(std::byte* data, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const std::string what = "map " + std::to_string(size_bytes) + " bytes for " + name_;
  if (closed_) return Error{Code::io_error, 0, what + ": it was isolated", ""};
  if (mappings_left_ == 0) {
    return Error{Code::out_of_memory, 0, what + ": the kernel allows no more mappings",
                 "attach fewer and larger pieces of memory, or raise dma_entry_limit of vfio_iommu_type1"};
  }
  // Memory in huge pages is mapped in huge pages, if its address in one is the same on both sides.
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const bool large = size_bytes >= large_page && begin % large_page == 0;
  auto address = addresses_->allocate(size_bytes, large ? large_page : system_page_bytes());
  if (!address) return Error{Code::out_of_memory, 0, what + ": no I/O addresses are left", "attach less memory"};
  vfio_iommu_type1_dma_map map{.argsz = sizeof map,
                               .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
                               .vaddr = begin,
                               .iova = *address,
                               .size = size_bytes};
  if (::ioctl(container_.get(), VFIO_IOMMU_MAP_DMA, &map) != 0) {
    const int error = errno;
    addresses_->release(*address, size_bytes);
    return system_error(error, what,
                        error == ENOMEM   ? "raise the limit on locked memory (ulimit -l): all of it gets locked"
                        : error == ENOSPC ? "raise dma_entry_limit of vfio_iommu_type1"
                                          : "");
  }
  --mappings_left_;
  mappings_.emplace(*address, size_bytes);
  return *address;
}

void VfioGroup::unmap(std::uint64_t address, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  if (const Status status = unmap_one(address, size_bytes); !status) {
    // The kernel keeps the pages as long as the device may reach them; the addresses must not be given to others.
    log(LogLevel::error, status.error().message);
    return;
  }
  ++mappings_left_;
  mappings_.erase(address);
  addresses_->release(address, size_bytes);
}

Status VfioGroup::unmap_all() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  Status outcome;
  std::erase_if(mappings_, [&](const auto& mapping) {
    Status status = unmap_one(mapping.first, mapping.second);
    const bool gone = status.ok();
    if (!gone) outcome = std::move(status);
    return gone;
  });
  return outcome;
}

Status VfioGroup::unmap_one(std::uint64_t address, std::uint64_t size_bytes) const {
  vfio_iommu_type1_dma_unmap unmap{};
  unmap.argsz = sizeof unmap;
  unmap.iova = address;
  unmap.size = size_bytes;
  const std::string what = "unmap memory of " + name_;
  if (::ioctl(container_.get(), VFIO_IOMMU_UNMAP_DMA, &unmap) != 0) return system_error(errno, what);
  if (unmap.size == size_bytes) return {};
  return Error{Code::internal, 0,
               what + ": " + std::to_string(unmap.size) + " bytes instead of " + std::to_string(size_bytes), ""};
}

}  // namespace penstock::nvme
