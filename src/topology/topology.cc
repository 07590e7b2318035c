#include "penstock/topology.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "topology/sysfs.h"

namespace penstock {

namespace fs = std::filesystem;

namespace {

constexpr int depth_limit = 8;           // of device mapper upon RAID upon …
constexpr std::size_t disk_limit = 256;  // of one path

// Disks of a hypervisor show up behind virtio or Xen's bus, even where that is on a PCI bus.
bool is_made_up(const fs::path& folder, const fs::path& sysfs) {
  return std::ranges::any_of(folder.lexically_relative(sysfs), [](const fs::path& part) {
    const std::string& name = part.native();
    return name.starts_with("virtio") || name.starts_with("vbd-") || name == "virtual";
  });
}

// An NVMe disk that several controllers may reach hangs on no bus itself; one of those controllers does.
fs::path controller_of(const fs::path& folder) {
  const fs::path subsystem = folder.parent_path();
  if (!subsystem.filename().native().starts_with("nvme-subsys")) return folder;
  for (const std::string& name : topology::names_in(subsystem)) {
    std::error_code error;
    if (!fs::is_symlink(subsystem / name, error) || name == "subsystem") continue;
    fs::path controller = fs::canonical(subsystem / name, error);
    if (!error) return controller;
  }
  return folder;
}

Disk describe_disk(const fs::path& folder, const fs::path& sysfs) {
  const fs::path place = controller_of(folder);
  Disk disk{.name = folder.filename(), .pci = topology::pci_device_of(place, sysfs)};
  disk.is_virtual = !disk.pci || is_made_up(place, sysfs);
  return disk;
}

void add_disks(const fs::path& given, const fs::path& sysfs, int depth, std::vector<Disk>& disks) {
  std::error_code error;
  fs::path folder = fs::canonical(given, error);
  if (error || depth > depth_limit || disks.size() >= disk_limit) return;
  if (fs::exists(folder / "partition", error)) folder = folder.parent_path();
  const std::vector<std::string> slaves = topology::names_in(folder / "slaves");
  for (const std::string& slave : slaves) add_disks(folder / "slaves" / slave, sysfs, depth + 1, disks);
  const auto is_this = [&](const Disk& disk) { return disk.name == folder.filename(); };
  if (slaves.empty() && std::ranges::none_of(disks, is_this)) disks.push_back(describe_disk(folder, sysfs));
}

// Btrfs gives its files device numbers of its own; the mount table names the disk.
std::optional<dev_t> device_from_mounts(const std::string& path) {
  struct statx status {};
  if (statx(AT_FDCWD, path.c_str(), 0, STATX_MNT_ID, &status) != 0 || !(status.stx_mask & STATX_MNT_ID)) return {};
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    if (!line.starts_with(std::to_string(status.stx_mnt_id) + " ")) continue;
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) return {};
    std::istringstream rest(line.substr(dash + 3));
    std::string type, source;
    rest >> type >> source;
    struct stat device {};
    if (stat(source.c_str(), &device) == 0 && S_ISBLK(device.st_mode)) return device.st_rdev;
    return {};
  }
  return {};
}

// Links are followed to where they end, so the root has to be as the kernel would write it.
fs::path real_root(const std::string& sysfs) {
  std::error_code error;
  const fs::path root = fs::canonical(sysfs, error);
  return error ? fs::path(sysfs) : root;
}

}  // namespace

double PciLink::bytes_per_second() const {
  // PCIe 6.0, chapter 4: 8b/10b up to 5 GT/s, 128b/130b up to 32 GT/s, then flits of 256 bytes with 236 of payload.
  const double code = gigatransfers_per_second <= 5 ? 0.8 : gigatransfers_per_second <= 32 ? 128.0 / 130 : 236.0 / 256;
  return gigatransfers_per_second * 1e9 * width * code / 8;
}

std::string_view relation_name(Relation relation) {
  static constexpr std::array<std::string_view, 6> names = {"same-switch",  "same-root-complex", "same-node",
                                                            "across-nodes", "virtual-disk",      "unknown"};
  const auto index = static_cast<std::size_t>(relation);
  return index < names.size() ? names[index] : names.back();
}

Result<StoragePlace> describe_path(const std::string& path, const std::string& sysfs) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return system_error(errno, "look at " + path);
  dev_t device = S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev;
  if (major(device) == 0) device = device_from_mounts(path).value_or(device);

  const fs::path root = real_root(sysfs);
  const std::string number = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  std::error_code error;
  const fs::path folder = fs::canonical(root / "dev/block" / number, error);
  if (error) {
    return Error{.code = Code::unsupported,
                 .message = path + " is on a file system without its own disk",
                 .hint = "tmpfs, overlayfs and network mounts have no place on the bus"};
  }
  StoragePlace place{.device = folder.filename()};
  add_disks(folder, root, 0, place.disks);
  return place;
}

Result<PciDevice> describe_pci(const std::string& address, const std::string& sysfs) {
  if (!topology::is_pci_address(address)) {
    return Error{.code = Code::invalid_argument,
                 .message = "\"" + address + "\" is not a PCI address",
                 .hint = "it looks like 0000:03:00.0"};
  }
  const fs::path root = real_root(sysfs);
  std::error_code error;
  const fs::path folder = fs::canonical(root / "bus/pci/devices" / address, error);
  std::optional<PciDevice> device;
  if (!error) device = topology::pci_device_of(folder, root);
  if (device) return std::move(*device);
  return Error{.code = Code::not_found,
               .message = "there is no PCI device " + address + " in " + sysfs,
               .hint = "containers may hide /sys/bus/pci"};
}

Relation relate(const Disk& disk, const PciDevice& device) {
  if (disk.is_virtual) return Relation::virtual_disk;
  if (!disk.pci) return Relation::unknown;
  const std::vector<std::string>& bridges = disk.pci->bridges;
  if (!bridges.empty() && !device.bridges.empty() && bridges.front() == device.bridges.front()) {
    return Relation::same_switch;
  }
  if (!device.root.empty() && disk.pci->root == device.root) return Relation::same_root_complex;
  if (disk.pci->numa_node < 0 || device.numa_node < 0) return Relation::unknown;
  return disk.pci->numa_node == device.numa_node ? Relation::same_node : Relation::across_nodes;
}

}  // namespace penstock
