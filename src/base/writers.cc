#include "base/writers.h"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace penstock {

void await_writers(int fd, std::uint64_t size_bytes) {
  struct statfs system = {};
  if (size_bytes == 0 || ::fstatfs(fd, &system) != 0) return;
  if (system.f_type == EXT4_SUPER_MAGIC || system.f_type == TMPFS_MAGIC) await_write_lock(fd, size_bytes);
}

// To look for a hole takes the lock that a write holds to its end. In the last block: no list of extents is searched.
void await_write_lock(int fd, std::uint64_t size_bytes) {
  if (size_bytes != 0) static_cast<void>(::lseek(fd, static_cast<off_t>(size_bytes - 1), SEEK_HOLE));
}

}  // namespace penstock
