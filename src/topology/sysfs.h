// Sysfs: small text files and links below a root folder, read with limits.
//
// Thread safety: pure functions. A file that is missing or makes no sense reads as nothing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/topology.h"

namespace penstock::topology {

// The first line of a file, without white space around it; empty if there is none.
std::string read_line(const std::filesystem::path& file);
std::optional<std::int64_t> read_number(const std::filesystem::path& file);
// The names in a folder, sorted; none if it is not there.
std::vector<std::string> names_in(const std::filesystem::path& folder);

// Reads "32.0 GT/s PCIe"; 0 for "Unknown" and everything else.
double parse_link_speed(std::string_view text);
// Reads the `resource` file of a PCI device and finds its largest prefetchable BAR, in bytes.
std::uint64_t largest_prefetchable_bar(std::string_view text);

// Whether a name is that of a PCI device, "0000:03:00.0", or of a host bridge, "pci0000:00".
bool is_pci_address(std::string_view name);
bool is_pci_root(std::string_view name);

// The PCI device of a folder below /sys/devices, or the one that it is a part of; nothing if there is none.
std::optional<PciDevice> pci_device_of(const std::filesystem::path& folder, const std::filesystem::path& sysfs);

}  // namespace penstock::topology
