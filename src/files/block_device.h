// Block devices of the kernel: their geometry, and whether writing to one would hurt somebody.
//
// Thread safety: pure functions of the system's state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "files/mount.h"
#include "penstock/result.h"

namespace penstock::files {

// Where the kernel tells about itself; tests bring trees of their own.
struct SystemRoots {
  std::string proc = "/proc";
  std::string sys = "/sys";
};

struct Geometry {
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;  // the logical block
};
Result<Geometry> block_device_geometry(int fd, const std::string& name);

DeviceNumber device_number(dev_t device);

// A number from the request queue of a disk or of the disk that a partition is on: "logical_block_size".
std::optional<std::uint32_t> queue_limit(DeviceNumber device, const std::string& limit, const SystemRoots& roots = {});

// Code::in_use, naming the user, if the device, one of its partitions or the disk that it is a part of is mounted,
// swapped on or held by another device. Also an error if the system can't be asked.
Status check_unused(DeviceNumber device, const std::string& name, const SystemRoots& roots = {});

}  // namespace penstock::files
