#include "nvme/pci.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>
#include <utility>

namespace penstock::nvme {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view nvme_class = "0x010802";

std::string first_word(const fs::path& file) {
  std::string word;
  std::ifstream(file) >> word;
  return word;
}

// What a link leads to, by its last name; empty if there is no link.
std::string link_name(const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  return error ? "" : target.filename().string();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The disks of a controller, "nvme0n1", are folders of it. With multipath these are the paths to a disk: "nvme0c1n1"
// is a path to nvme0n1.
std::vector<std::string> disks_of(const fs::path& device) {
  std::vector<std::string> disks;
  for (const std::string& controller : names_in(device / "nvme")) {
    for (std::string name : names_in(device / "nvme" / controller)) {
      const std::size_t number = name.find('n', 4);
      if (!name.starts_with("nvme") || number == std::string::npos) continue;
      const std::size_t path = std::min(name.find('c', 4), number);
      disks.push_back(name.erase(path, number - path));
    }
  }
  return disks;
}

bool is_address(std::string_view text) {
  constexpr std::string_view shape = "0000:00:00.0";
  if (text.size() != shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    const bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (shape[i] == '0' ? !digit : text[i] != shape[i]) return false;
  }
  return true;
}

NvmeDevice describe_device(const fs::path& device) {
  return {device.filename().string(), link_name(device / "driver"), link_name(device / "iommu_group"), disks_of(device),
          ""};
}

}  // namespace

Result<std::vector<NvmeDevice>> find_pci_controllers(const fs::path& sysfs) {
  const fs::path bus = sysfs / "bus/pci/devices";
  std::error_code error;
  if (!fs::is_directory(bus, error)) return std::vector<NvmeDevice>{};
  std::vector<NvmeDevice> devices;
  for (const std::string& address : names_in(bus)) {
    const fs::path device = bus / address;
    if (first_word(device / "class") != nvme_class) continue;
    devices.push_back(describe_device(device));
  }
  return devices;
}

Result<NvmeDevice> find_pci_controller(const std::string& address, const fs::path& sysfs) {
  const std::string list_hint = "`penstock nvme list` shows the controllers of this machine";
  if (!is_address(address)) {
    return Error{Code::invalid_argument, 0, "\"" + address + "\" is not a PCI address",
                 "write it in full, as 0000:01:00.0; " + list_hint};
  }
  const fs::path device = sysfs / "bus/pci/devices" / address;
  std::error_code error;
  if (!fs::exists(device, error)) return Error{Code::not_found, 0, "there is no PCI device at " + address, list_hint};
  const std::string device_class = first_word(device / "class");
  if (device_class != nvme_class) {
    return Error{
        Code::unsupported, 0,
        address + " is not an NVMe controller: its class is " + device_class + ", not " + std::string(nvme_class),
        list_hint};
  }
  return describe_device(device);
}

bool is_settled(const NvmeDevice& device, const fs::path& sysfs) {
  if (device.driver != kernel_driver) return true;
  const fs::path folder = sysfs / "bus/pci/devices" / device.address / "nvme";
  const std::vector<std::string> controllers = names_in(folder);
  return !controllers.empty() && std::ranges::all_of(controllers, [&](const std::string& controller) {
    return first_word(folder / controller / "state") == "live";
  });
}

Result<VfioPlace> find_for_vfio(const std::string& address, const fs::path& sysfs) {
  auto device = find_pci_controller(address, sysfs);
  if (!device) return std::move(device).error();
  const std::string bind_hint = "`penstock nvme bind " + address + "`";
  if (device->iommu_group.empty()) {
    return Error{Code::unsupported, 0, address + " is not behind an IOMMU, or the IOMMU is off",
                 "switch it on in the firmware, and on Intel machines for the kernel with intel_iommu=on"};
  }
  if (device->driver.empty()) {
    return Error{Code::unsupported, 0, "no driver is bound to " + address, bind_hint + " binds vfio-pci to it"};
  }
  if (device->driver != vfio_driver) {
    return Error{Code::in_use, 0, address + " belongs to the kernel's driver " + device->driver,
                 bind_hint + " takes it, if nothing uses it"};
  }
  VfioPlace place{address, device->iommu_group, {}};
  const fs::path others = sysfs / "bus/pci/devices" / address / "iommu_group/devices";
  for (const std::string& other : names_in(others)) {
    const std::string driver = link_name(others / other / "driver");
    // VFIO minds neither bridges nor devices that nobody drives.
    const bool harmless = driver.empty() || driver == vfio_driver || driver == "pcieport" || driver == "pci-stub";
    if (other != address && !harmless) place.neighbours.push_back({other, driver});
  }
  return place;
}

Result<NamespaceName> parse_namespace_name(const std::string& name) {
  const std::size_t slash = name.find('/');
  NamespaceName parsed{name.substr(0, slash)};
  if (slash == std::string::npos) return parsed;
  const char* const begin = name.data() + slash + 1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, parsed.id);
  if (error == std::errc() && stop == end && parsed.id != 0) return parsed;
  return Error{Code::invalid_argument, 0, "\"" + name.substr(slash + 1) + "\" is not the number of a namespace",
               "write ADDRESS/NUMBER, as 0000:01:00.0/1"};
}

}  // namespace penstock::nvme
