// Block devices of the kernel: their numbers and geometry.
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
  std::string dev = "/dev";
};

struct Geometry {
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 0;  // the logical block
};
Result<Geometry> block_device_geometry(int fd, const std::string& name);

DeviceNumber device_number(dev_t device);

// A number from the request queue of a disk or of the disk that a partition is on: "logical_block_size".
std::optional<std::uint32_t> queue_limit(DeviceNumber device, const std::string& limit, const SystemRoots& roots = {});

// For commands of a disk, or of the disk that a partition is on; 0: the kernel does not tell.
std::uint32_t count_queues(DeviceNumber device, const SystemRoots& roots = {});

// What direct transfers want to know of the disk below a file; zeros where the kernel does not tell.
struct DiskFacts {
  std::uint32_t block_bytes = 0;  // the logical block
  std::uint32_t optimal_bytes = 0;
  std::uint32_t queues = 0;
};
DiskFacts disk_facts(DeviceNumber device, const SystemRoots& roots = {});

// Whether the kernel refuses to write to it: `blockdev --setro`, `losetup --read-only`, a switch on the medium.
bool is_read_only(DeviceNumber device, const SystemRoots& roots = {});

}  // namespace penstock::files
