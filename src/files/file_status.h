// FileStatus: what the kernel says of an open file, in one call.
//
// Thread safety: functions.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>

#include "files/mount.h"

namespace penstock::files {

// Of direct transfers with a file; nothing where its file system does not say (before Linux 6.1, overlayfs).
struct DirectSupport {
  std::uint32_t memory_alignment = 0;
  std::uint32_t offset_alignment = 0;  // 0: there are none
};

struct FileStatus {
  struct stat basic = {};
  std::optional<MountMark> mount;  // that the file was reached through
  std::optional<DirectSupport> direct;
};

// Nothing where it fails, with the reason in errno. `flags` are those of statx(2).
std::optional<FileStatus> status_of(int fd, int flags = 0);

}  // namespace penstock::files
