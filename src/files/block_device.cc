#include "files/block_device.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace penstock::files {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Of the device node `path`, if it is one.
std::optional<DeviceNumber> device_of_node(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISBLK(status.st_mode)) return std::nullopt;
  return device_number(status.st_rdev);
}

// A device whose use is a use of the one asked about.
struct Related {
  DeviceNumber number;
  fs::path folder;  // in sysfs
};

std::optional<Related> related_at(const fs::path& folder) {
  const auto text = read_text(folder / "dev");
  if (!text) return std::nullopt;
  DeviceNumber number;
  if (std::sscanf(text->c_str(), "%u:%u", &number.major, &number.minor) != 2) return std::nullopt;
  return Related{number, folder};
}

// The device itself, its partitions, and the disk that it is a partition of.
Result<std::vector<Related>> related_devices(DeviceNumber device, const std::string& name, const SystemRoots& roots) {
  std::error_code error;
  const fs::path folder = fs::canonical(fs::path(roots.sys) / "dev/block" / device.name(), error);
  if (error) {
    return Error{Code::unsupported, error.value(),
                 "can't tell whether " + name + " is in use: " + roots.sys + "/dev/block/" + device.name() + ": " +
                     error.message(),
                 "make sysfs visible to this process; Penstock does not write to a disk without looking"};
  }
  std::vector<Related> related{{device, folder}};
  if (fs::exists(folder / "partition", error)) {
    if (auto disk = related_at(folder.parent_path())) related.push_back(std::move(*disk));
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (!fs::exists(entry.path() / "partition", ignored)) continue;
    if (auto partition = related_at(entry.path())) related.push_back(std::move(*partition));
  }
  return related;
}

bool contains(const std::vector<Related>& devices, std::optional<DeviceNumber> number) {
  return number && std::any_of(devices.begin(), devices.end(), [&](const Related& r) { return r.number == *number; });
}

Error in_use(const std::string& name, const std::string& user, const std::string& hint) {
  return {Code::in_use, EBUSY, name + " is in use: " + user, hint};
}

Status check_not_mounted(const std::vector<Related>& devices, const std::string& name, const SystemRoots& roots) {
  const std::string path = roots.proc + "/self/mountinfo";
  const auto text = read_text(path);
  if (!text) {
    return Error{Code::unsupported, errno, "can't tell whether " + name + " is mounted: " + path + " can't be read",
                 "make procfs visible to this process"};
  }
  for (const Mount& mount : parse_mountinfo(*text)) {
    if (contains(devices, mount.device) || contains(devices, device_of_node(mount.source))) {
      return in_use(name, "it, or a part of it, is mounted on " + mount.point,
                    "unmount it first: umount " + mount.point);
    }
  }
  return {};
}

Status check_not_swapped(const std::vector<Related>& devices, const std::string& name, const SystemRoots& roots) {
  // Kernels without swap have no such file.
  const auto text = read_text(roots.proc + "/swaps");
  if (!text) return {};
  for (const std::string& swap : parse_swaps(*text)) {
    if (contains(devices, device_of_node(swap))) {
      return in_use(name, "the system swaps to " + swap, "switch the swap off first: swapoff " + swap);
    }
  }
  return {};
}

Status check_not_held(const std::vector<Related>& devices, const std::string& name) {
  for (const Related& device : devices) {
    std::error_code error;
    for (const auto& holder : fs::directory_iterator(device.folder / "holders", error)) {
      return in_use(name, "it, or a part of it, is held by " + holder.path().filename().string(),
                    "stop the device mapper, RAID or multipath device that is built on it");
    }
  }
  return {};
}

}  // namespace

DeviceNumber device_number(dev_t device) {
  return {gnu_dev_major(device), gnu_dev_minor(device)};
}

Result<Geometry> block_device_geometry(int fd, const std::string& name) {
  Geometry geometry;
  int block_bytes = 0;
  if (::ioctl(fd, BLKGETSIZE64, &geometry.size_bytes) != 0) return system_error(errno, "ask the size of " + name);
  if (::ioctl(fd, BLKSSZGET, &block_bytes) != 0) return system_error(errno, "ask the block size of " + name);
  geometry.block_bytes = static_cast<std::uint32_t>(block_bytes);
  return geometry;
}

std::optional<std::uint32_t> queue_limit(DeviceNumber device, const std::string& limit, const SystemRoots& roots) {
  const std::string folder = roots.sys + "/dev/block/" + device.name();
  for (const char* queue : {"/queue/", "/../queue/"}) {
    std::ifstream file((folder + queue).append(limit));
    std::uint32_t value = 0;
    if (file >> value) return value;
  }
  return std::nullopt;
}

Status check_unused(DeviceNumber device, const std::string& name, const SystemRoots& roots) {
  auto devices = related_devices(device, name, roots);
  if (!devices) return std::move(devices).error();
  if (Status status = check_not_mounted(*devices, name, roots); !status) return status;
  if (Status status = check_not_swapped(*devices, name, roots); !status) return status;
  return check_not_held(*devices, name);
}

}  // namespace penstock::files
