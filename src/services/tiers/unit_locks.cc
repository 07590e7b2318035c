#include "services/tiers/unit_locks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>

#include "services/tiers/folder.h"

namespace penstock::tiers {
namespace {

struct flock byte_of(std::int64_t unit, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = unit;
  lock.l_len = 1;
  return lock;
}

const char* hint_for_beside(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return "run as a user who may write beside the catalog";
    case EROFS:
      return "the catalog's file system is read-only: remount it, or name another catalog";
    case ENOSPC:
    case EDQUOT:
      return "free some room on the disk of the catalog";
    default:
      return "";
  }
}

}  // namespace

Result<UnitLocks> UnitLocks::open(const std::string& catalog) {
  const std::string path = catalog + "-units";
  struct stat status = {};
  // Users who may write to the catalog lock units. Those who may only read it could hold locks as well.
  const mode_t writers = ::stat(catalog.c_str(), &status) == 0 ? status.st_mode & 0222 : 0200;
  const mode_t mode = writers | writers << 1;
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode));
  if (file && ::fstat(file.get(), &status) == 0 && status.st_uid == ::geteuid() && (status.st_mode & 0777) != mode) {
    static_cast<void>(::fchmod(file.get(), mode));
  }
  if (!file) return file_error(errno, "open " + path, hint_for_beside(errno));
  return UnitLocks(std::move(file));
}

Result<bool> UnitLocks::try_lock(std::int64_t unit) {
  struct flock lock = byte_of(unit, F_WRLCK);
  for (;;) {
    if (::fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) return true;
    if (errno == EAGAIN || errno == EACCES) return false;
    if (errno != EINTR) return system_error(errno, "lock a unit", "keep the catalog on a local file system");
  }
}

Result<std::int64_t> UnitLocks::lock_new_number() {
  std::random_device random;
  for (;;) {
    const std::uint64_t drawn = (static_cast<std::uint64_t>(random()) << 32 | random()) % first_new_number;
    const std::int64_t number = first_new_number + static_cast<std::int64_t>(drawn);
    const auto locked = try_lock(number);
    if (!locked) return locked.error();
    if (*locked) return number;
  }
}

void UnitLocks::unlock(std::int64_t unit) {
  struct flock lock = byte_of(unit, F_UNLCK);
  ::fcntl(file_.get(), F_OFD_SETLK, &lock);
}

}  // namespace penstock::tiers
