#include "files/block_device.h"

#include <dirent.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <fstream>
#include <memory>

namespace penstock::files {

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

// Not by std::filesystem, whose iterators end the process where memory is short.
std::uint32_t count_queues(DeviceNumber device, const SystemRoots& roots) {
  const std::string disk = roots.sys + "/dev/block/" + device.name();
  for (const char* queues : {"/mq", "/../mq"}) {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir((disk + queues).c_str()), ::closedir);
    if (!folder) continue;
    std::uint32_t count = 0;
    while (const dirent* const each = ::readdir(folder.get())) count += each->d_name[0] != '.' ? 1 : 0;
    return count;
  }
  return 0;
}

DiskFacts disk_facts(DeviceNumber device, const SystemRoots& roots) {
  return {.block_bytes = queue_limit(device, "logical_block_size", roots).value_or(0),
          .optimal_bytes = queue_limit(device, "optimal_io_size", roots).value_or(0),
          .queues = count_queues(device, roots)};
}

bool is_read_only(DeviceNumber device, const SystemRoots& roots) {
  int value = 0;
  std::ifstream(roots.sys + "/dev/block/" + device.name() + "/ro") >> value;
  return value != 0;
}

}  // namespace penstock::files
