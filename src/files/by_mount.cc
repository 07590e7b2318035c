#include "files/by_mount.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace penstock::files {

bool MountChanges::is_own_descriptor() const {
  struct stat status = {};
  return mounts_ >= 0 && process_ == ::getpid() && ::fstat(mounts_, &status) == 0 && status.st_dev == device_ &&
         status.st_ino == inode_;
}

bool MountChanges::happened() {
  if (is_own_descriptor()) {
    pollfd mounts{.fd = mounts_, .events = POLLPRI, .revents = 0};
    return ::poll(&mounts, 1, 0) < 0 || mounts.revents != 0;
  }
  mounts_ = ::open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (mounts_ >= 0 && ::fstat(mounts_, &status) == 0) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
    process_ = ::getpid();
  }
  return true;
}

}  // namespace penstock::files
