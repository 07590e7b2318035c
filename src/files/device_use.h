// Who would be hurt if a block device or a file were written to behind his back: mounts, swap, and the devices that are
// built on it, however high they are stacked.
//
// Thread safety: pure functions of the system's state.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "files/block_device.h"
#include "penstock/result.h"

namespace penstock::files {

// Code::in_use, naming the user and how to make it let go, if the device is mounted, swapped on, held by another device
// (device mapper, RAID) or the backing of a loop device. So are its partitions, the disk that it is a partition of, and
// what it is built on looked at: two loop devices may show the same bytes. Also an error if the system can't be asked.
Status check_unused(DeviceNumber device, const std::string& name, const SystemRoots& roots = {});

// How the content of a file is to change: its own bytes, or by another file that takes its name.
enum class FileChange { in_place, replacement };

// The same for a regular file: it may be the backing of a loop device, or swapped on. The old file lives on where it is
// replaced, so that a read-only loop device does not mind; what is written to another one later would be lost with the
// old file. Where the system can't be asked, a file counts as unused.
Status check_unused(const struct stat& file, const std::string& name, FileChange change, const SystemRoots& roots = {});

}  // namespace penstock::files
