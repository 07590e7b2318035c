// NVMe controllers on the PCI bus, as sysfs tells of them.
//
// Thread safety: pure functions of a sysfs tree.
#pragma once

#include <filesystem>
#include <vector>

#include "penstock/nvme.h"

namespace penstock::nvme {

// Those of PCI class 01.08.02, by address; used_by is not looked at.
Result<std::vector<NvmeDevice>> find_pci_controllers(const std::filesystem::path& sysfs = "/sys");

}  // namespace penstock::nvme
