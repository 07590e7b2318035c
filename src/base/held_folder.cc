#include "base/held_folder.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace penstock {
namespace {

constexpr int folder_flags = O_PATH | O_DIRECTORY | O_CLOEXEC;

// Since Linux 5.6. Containers may refuse it (EPERM).
int open_resolved(int folder, const char* name, int flags, mode_t mode) {
  struct open_how how = {};
  how.flags = static_cast<std::uint64_t>(static_cast<unsigned>(flags));
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(::syscall(SYS_openat2, folder, name, &how, sizeof how));
}

// openat(2) for one part of a name. Links that are not followed where a folder is wanted fail with ENOTDIR there.
int open_part(int folder, const std::string& part, int flags, mode_t mode) {
  const int fd = ::openat(folder, part.c_str(), flags | O_NOFOLLOW, mode);
  if (fd >= 0 || errno != ENOTDIR) return fd;
  struct stat status = {};
  const bool is_link = ::fstatat(folder, part.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(status.st_mode);
  errno = is_link ? ELOOP : ENOTDIR;
  return -1;
}

// The same as open_resolved with what every kernel has.
int open_by_parts(int folder, std::string_view name, int flags, mode_t mode) {
  UniqueFd held;
  for (;;) {
    const std::size_t slash = name.find('/');
    const std::string part(name.substr(0, slash));
    if (part == "..") {
      errno = EXDEV;
      return -1;
    }
    const int at = held ? held.get() : folder;
    if (slash == std::string_view::npos) return open_part(at, part, flags, mode);
    UniqueFd next(open_part(at, part, folder_flags, 0));
    if (!next) return -1;
    held = std::move(next);
    name.remove_prefix(slash + 1);
  }
}

}  // namespace

Result<HeldFolder> HeldFolder::open(std::string path) {
  UniqueFd fd(::open(path.c_str(), folder_flags));
  if (!fd) return system_error(errno, "open the folder " + path);
  return HeldFolder(std::move(fd), std::move(path));
}

UniqueFd HeldFolder::open(const std::string& name, int flags, mode_t mode) const {
  const char* const path = name.empty() ? "." : name.c_str();
  for (;;) {
    int fd = open_resolved(fd_.get(), path, flags | O_CLOEXEC, mode);
    if (fd < 0 && (errno == ENOSYS || errno == EPERM)) fd = open_by_parts(fd_.get(), path, flags | O_CLOEXEC, mode);
    if (fd >= 0 || errno != EINTR) return UniqueFd(fd);
  }
}

PathBeneath PathBeneath::operator/(std::string_view below) const {
  if (below.empty()) return *this;
  return {folder, name.empty() ? std::string(below) : name + "/" + std::string(below)};
}

PathBeneath PathBeneath::parent() const {
  const std::size_t slash = name.rfind('/');
  return {folder, slash == std::string::npos ? "" : name.substr(0, slash)};
}

NameInFolder::NameInFolder(const PathBeneath& path) : folder_(path.parent().open(folder_flags)), name_(path.last()) {}

}  // namespace penstock
