// The syncs of a test executable, whichever library makes them: see base/test_syncs.h.
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/test_syncs.h"

namespace penstock::test {
namespace {

int synced(int fd, long call) {
  if (const int error = SyncRecorder::get().on_sync(fd); error != 0) {
    errno = error;
    return -1;
  }
  return static_cast<int>(::syscall(call, fd));
}

}  // namespace
}  // namespace penstock::test

extern "C" {
int fsync(int fd) {
  return penstock::test::synced(fd, SYS_fsync);
}
int fdatasync(int fd) {
  return penstock::test::synced(fd, SYS_fdatasync);
}
int syncfs(int fd) noexcept {
  return penstock::test::synced(fd, SYS_syncfs);
}
}
