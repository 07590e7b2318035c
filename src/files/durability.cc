#include "files/durability.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/uninterrupted.h"
#include "base/unique_fd.h"
#include "files/block_device.h"
#include "files/mount.h"

namespace penstock::files {
namespace {

namespace fs = std::filesystem;

Error not_durable(int error, const std::string& path) {
  Error made = system_error(error, path + " is complete under its name, but its folder can't be synced",
                            "after a power cut the name may mean the old file, or none; look into the kernel log, then "
                            "sync the folder or write again");
  made.code = Code::not_durable;
  return made;
}

// RAM disks of the kernel, plain and compressed.
bool is_ram_disk(DeviceNumber device) {
  std::error_code failed;
  const std::string name = fs::read_symlink("/sys/dev/block/" + device.name(), failed).filename().string();
  return name.starts_with("ram") || name.starts_with("zram");
}

FileSystem file_system_at(const std::string& path) {
  struct statfs system = {};
  if (::statfs(path.c_str(), &system) != 0) return {};
  return file_system_from_magic(static_cast<std::uint32_t>(system.f_type));
}

// Of overlayfs: it writes to another file system, and syncs that unless it was told not to.
std::string overlay_volatile_because(int fd) {
  const auto mount = mount_of(fd);
  if (!mount) return {};
  if (mount_option(*mount, "volatile")) return "overlayfs is mounted with \"volatile\"";
  const auto upper = mount_option(*mount, "upperdir");
  const FileSystem below = upper ? file_system_at(*upper) : FileSystem();
  return below.locality == Locality::memory ? "overlayfs is over " + below.name + ", which is memory" : "";
}

}  // namespace

Status sync_folder(int folder, const std::string& path) {
  // EINVAL: this file system has nothing to sync for a folder, as those whose server keeps the names.
  if (uninterrupted([&] { return ::fsync(folder); }) == 0 || errno == EINVAL) return {};
  return not_durable(errno, path);
}

Status sync_folder_of(const std::string& path) {
  std::error_code failed;
  const fs::path real = fs::canonical(path, failed);
  if (failed) return not_durable(failed.value(), path);
  const UniqueFd folder(::open(real.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return folder ? sync_folder(folder.get(), path) : not_durable(errno, path);
}

std::string volatile_because(int fd) {
  struct stat status = {};
  struct statfs system = {};
  if (::fstat(fd, &status) != 0 || ::fstatfs(fd, &system) != 0) return {};
  if (S_ISBLK(status.st_mode)) return is_ram_disk(device_number(status.st_rdev)) ? "a RAM disk is memory" : "";
  const FileSystem file_system = file_system_from_magic(static_cast<std::uint32_t>(system.f_type));
  if (file_system.locality == Locality::memory) return file_system.name + " is memory";
  if (file_system.name == "overlayfs") return overlay_volatile_because(fd);
  return is_ram_disk(device_number(status.st_dev)) ? file_system.name + " is on a RAM disk, which is memory" : "";
}

}  // namespace penstock::files
