#include "nvme/pci.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <system_error>

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

// The disks of a controller, "nvme0n1", are folders of it: directly, or with multipath beside it under the same name.
std::vector<std::string> disks_of(const fs::path& device) {
  std::vector<std::string> disks;
  for (const std::string& controller : names_in(device / "nvme")) {
    for (const std::string& name : names_in(device / "nvme" / controller)) {
      if (name.starts_with("nvme") && name.find('n', 4) != std::string::npos) disks.push_back(name);
    }
  }
  return disks;
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
    devices.push_back({address, link_name(device / "driver"), link_name(device / "iommu_group"), disks_of(device), ""});
  }
  return devices;
}

}  // namespace penstock::nvme
