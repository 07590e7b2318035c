#include "topology/sysfs.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <sstream>

namespace penstock::topology {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t file_limit_bytes = 4096;  // what the kernel gives of an attribute at most

std::string read_text(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(file_limit_bytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(stream.gcount()));
  return text;
}

// Whether `text` looks like `pattern`, in which an x stands for a hexadecimal digit.
bool matches(std::string_view text, std::string_view pattern) {
  return std::ranges::equal(text, pattern, [](char c, char p) {
    return p == 'x' ? std::isxdigit(static_cast<unsigned char>(c)) != 0 : c == p;
  });
}

PciLink read_link(const fs::path& folder, const std::string& which) {
  // The kernel says 255 for a width that it does not know.
  const std::int64_t width = read_number(folder / (which + "_link_width")).value_or(0);
  return {.gigatransfers_per_second = parse_link_speed(read_line(folder / (which + "_link_speed"))),
          .width = width > 0 && width <= 32 ? static_cast<int>(width) : 0};
}

// The kernel says -1 where the firmware does not tell; where there is one node, it is that.
int read_node(const fs::path& folder, const fs::path& sysfs) {
  const std::int64_t node = read_number(folder / "numa_node").value_or(-1);
  if (node >= 0 && node <= INT16_MAX) return static_cast<int>(node);
  const auto is_node = [](const std::string& name) {
    return name.starts_with("node") && name.size() > 4 && std::isdigit(static_cast<unsigned char>(name[4]));
  };
  return std::ranges::count_if(names_in(sysfs / "devices/system/node"), is_node) <= 1 ? 0 : -1;
}

}  // namespace

std::string read_line(const fs::path& file) {
  const std::string text = read_text(file);
  const std::string_view line = std::string_view(text).substr(0, text.find('\n'));
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return std::string(line.substr(begin, line.find_last_not_of(" \t") - begin + 1));
}

std::optional<std::int64_t> read_number(const fs::path& file) {
  const std::string line = read_line(file);
  std::int64_t value = 0;
  const char* end = line.data() + line.size();
  const auto [stop, error] = std::from_chars(line.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

double parse_link_speed(std::string_view text) {
  const std::size_t unit = text.find(" GT/s");
  if (unit == std::string_view::npos) return 0;
  double speed = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + unit, speed);
  const bool whole = error == std::errc() && stop == text.data() + unit;
  return whole && speed > 0 && speed < 1000 ? speed : 0;
}

std::uint64_t largest_prefetchable_bar(std::string_view text) {
  constexpr std::uint64_t is_memory = 0x200, is_prefetchable = 0x2000;  // IORESOURCE_* of linux/ioport.h
  constexpr int bar_count = 6;  // the lines after them are the ROM and the windows of bridges
  std::istringstream lines{std::string(text)};
  std::uint64_t largest = 0, start = 0, end = 0, flags = 0;
  for (int bar = 0; bar < bar_count && lines >> std::hex >> start >> end >> flags; ++bar) {
    if ((flags & is_memory) == 0 || (flags & is_prefetchable) == 0 || end <= start) continue;
    largest = std::max(largest, end - start + 1);
  }
  return largest;
}

bool is_pci_address(std::string_view name) {
  // Virtual machines and VMD have domains of more than four digits.
  return matches(name, "xxxx:xx:xx.x") || matches(name, "xxxxx:xx:xx.x") || matches(name, "xxxxxxxx:xx:xx.x");
}

bool is_pci_root(std::string_view name) {
  return matches(name, "pcixxxx:xx") || matches(name, "pcixxxxx:xx") || matches(name, "pcixxxxxxxx:xx");
}

std::optional<PciDevice> pci_device_of(const fs::path& folder, const fs::path& sysfs) {
  PciDevice device;
  fs::path walked, found;
  for (const fs::path& part : folder) {
    walked /= part;
    const std::string name = part;
    if (is_pci_root(name) && device.root.empty()) device.root = name;
    if (!is_pci_address(name)) continue;
    if (!device.address.empty()) device.bridges.push_back(device.address);
    device.address = name;
    found = walked;
  }
  if (device.address.empty()) return std::nullopt;

  std::error_code no_driver;
  device.driver = fs::read_symlink(found / "driver", no_driver).filename();
  device.numa_node = read_node(found, sysfs);
  device.link = read_link(found, "current");
  device.link_max = read_link(found, "max");
  device.bar_bytes = largest_prefetchable_bar(read_text(found / "resource"));
  return device;
}

}  // namespace penstock::topology
