// NVMe controllers on the PCI bus, as sysfs tells of them, and how they are named.
//
// Thread safety: pure functions of a sysfs tree.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/nvme.h"

namespace penstock::nvme {

inline constexpr std::string_view vfio_driver = "vfio-pci";
inline constexpr std::string_view kernel_driver = "nvme";

// Those of PCI class 01.08.02, by address; used_by is not looked at.
Result<std::vector<NvmeDevice>> find_pci_controllers(const std::filesystem::path& sysfs = "/sys");
// The one at an address; each thing that can be wrong with it is an error of its own.
Result<NvmeDevice> find_pci_controller(const std::string& address, const std::filesystem::path& sysfs = "/sys");

// Whether the kernel's driver, where it has the controller, knows all of its disks.
bool is_settled(const NvmeDevice& device, const std::filesystem::path& sysfs = "/sys");

// Another device that an IOMMU can't tell from ours.
struct PciNeighbour {
  std::string address;
  std::string driver;
};
// A controller that VFIO can hand to this process.
struct VfioPlace {
  std::string address;
  std::string group;
  std::vector<PciNeighbour> neighbours;  // that keep the group from being taken
};
Result<VfioPlace> find_for_vfio(const std::string& address, const std::filesystem::path& sysfs = "/sys");

// "0000:01:00.0/1": a namespace of a controller; without a number the first.
struct NamespaceName {
  std::string address;
  std::uint32_t id = 1;
};
Result<NamespaceName> parse_namespace_name(const std::string& name);

}  // namespace penstock::nvme
