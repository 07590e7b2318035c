#include "files/file_status.h"

#include <fcntl.h>
#include <sys/sysmacros.h>

namespace penstock::files {
namespace {

// Since Linux 6.8; the system's headers may be older.
constexpr unsigned unique_mount_id = 0x4000U;

timespec time_of(const statx_timestamp& time) {
  return {static_cast<time_t>(time.tv_sec), static_cast<long>(time.tv_nsec)};
}

struct stat basic_of(const struct statx& told) {
  struct stat status = {};
  status.st_dev = gnu_dev_makedev(told.stx_dev_major, told.stx_dev_minor);
  status.st_ino = told.stx_ino;
  status.st_mode = told.stx_mode;
  status.st_nlink = told.stx_nlink;
  status.st_uid = told.stx_uid;
  status.st_gid = told.stx_gid;
  status.st_rdev = gnu_dev_makedev(told.stx_rdev_major, told.stx_rdev_minor);
  status.st_size = static_cast<off_t>(told.stx_size);
  status.st_blksize = static_cast<decltype(status.st_blksize)>(told.stx_blksize);
  status.st_blocks = static_cast<decltype(status.st_blocks)>(told.stx_blocks);
  status.st_atim = time_of(told.stx_atime);
  status.st_mtim = time_of(told.stx_mtime);
  status.st_ctim = time_of(told.stx_ctime);
  return status;
}

}  // namespace

std::optional<FileStatus> status_of(int fd, int flags) {
  struct statx told = {};
  // A kernel that has unique ids tells those; an older one does not know the flag, and tells the other.
  constexpr unsigned wanted = STATX_BASIC_STATS | STATX_DIOALIGN | STATX_MNT_ID | unique_mount_id;
  if (::statx(fd, "", flags | AT_EMPTY_PATH, wanted, &told) != 0) return std::nullopt;
  FileStatus status{.basic = basic_of(told), .mount = {}, .direct = {}};
  const bool unique = (told.stx_mask & unique_mount_id) != 0;
  if (unique || (told.stx_mask & STATX_MNT_ID) != 0) {
    status.mount = {.id = told.stx_mnt_id, .is_unique = unique, .device = {told.stx_dev_major, told.stx_dev_minor}};
  }
  if ((told.stx_mask & STATX_DIOALIGN) != 0) {
    status.direct = {.memory_alignment = told.stx_dio_mem_align, .offset_alignment = told.stx_dio_offset_align};
  }
  return status;
}

}  // namespace penstock::files
