// Topology: where disks and GPUs sit on the PCI bus, as sysfs shows it. What lies between a disk and a GPU decides
// whether bytes can go straight from one to the other, and how fast.
//
// Thread safety: pure functions of a sysfs tree. Lifetime: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/result.h"

namespace penstock {

struct PciLink {
  double gigatransfers_per_second = 0;  // per lane; 0: unknown
  int width = 0;                        // lanes; 0: unknown

  // What the link carries after its line code; packets cost a little more. 0: unknown.
  PENSTOCK_EXPORT double bytes_per_second() const;
  friend bool operator==(const PciLink&, const PciLink&) = default;
};

struct PciDevice {
  std::string address;               // "0000:03:00.0"
  std::string root;                  // the host bridge: "pci0000:00"
  std::vector<std::string> bridges;  // from the root port down to the one above the device
  std::string driver;                // that is bound to it; empty: none
  int numa_node = -1;                // -1: unknown
  PciLink link;                      // now: an idle GPU slows its link down
  PciLink link_max;                  // what the device can do
  std::uint64_t bar_bytes = 0;       // the largest prefetchable BAR: BAR1 of an NVIDIA GPU
};

struct Disk {
  std::string name;  // "nvme0n1"
  // Emulated by a hypervisor or the kernel: this machine can't tell where its bytes really are.
  bool is_virtual = false;
  std::optional<PciDevice> pci;  // the controller
};

// What holds the bytes of a path.
struct StoragePlace {
  std::string device;       // the block device below the file system: "nvme0n1p2", "dm-0"
  std::vector<Disk> disks;  // below partitions, device mapper and RAID
};

// From near to far.
enum class Relation : std::uint8_t {
  same_switch,        // below one PCI bridge: bytes need not pass the CPU
  same_root_complex,  // below one host bridge
  same_node,          // through the CPU that both are attached to
  across_nodes,       // through two CPUs and what connects them
  virtual_disk,       // a disk that is not on this machine's bus
  unknown,
};
PENSTOCK_EXPORT std::string_view relation_name(Relation relation);

// For a file or a block device. Code::unsupported for file systems without a disk (tmpfs, NFS, overlayfs).
PENSTOCK_EXPORT Result<StoragePlace> describe_path(const std::string& path, const std::string& sysfs = "/sys");
// `address` as in Gpu::pci_address.
PENSTOCK_EXPORT Result<PciDevice> describe_pci(const std::string& address, const std::string& sysfs = "/sys");
PENSTOCK_EXPORT Relation relate(const Disk& disk, const PciDevice& device);

}  // namespace penstock
