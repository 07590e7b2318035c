#include "files/may_wait.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"
#include "files/by_mount.h"

namespace penstock::files {
namespace {

// None where the kernel does not have all of the path in memory, or is older than Linux 5.12.
UniqueFd find_in_memory(const char* path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_CACHED;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how)));
}

// Not within the function: a child that is forked while a thread makes it there would wait for that thread.
ByMount<bool> known_locality;
bool is_local(int fd, const FileStatus& status) {
  if (!status.mount) return false;
  return known_locality
      .of(fd, status.mount,
          [&]() -> std::optional<bool> {
            const auto mount = mount_of(fd);
            if (!mount) return std::nullopt;
            return !is_served(mount->type) && mount->type != "autofs";
          })
      .value_or(false);
}

}  // namespace

Lookup look_in_memory(const std::string& name) {
  if (const UniqueFd file = find_in_memory(name.c_str())) {
    const auto status = status_of(file.get(), AT_STATX_DONT_SYNC);
    if (!status || !is_local(file.get(), *status)) return {};
    return {.may_wait = false, .status = status->basic, .all = status};
  }
  // In a folder of a local disk its entry is looked up there; a link may lead elsewhere.
  const std::size_t slash = name.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : name.substr(0, slash + 1);
  const std::string entry = slash == std::string::npos ? name : name.substr(slash + 1);
  const UniqueFd above = find_in_memory(folder.c_str());
  const auto folder_status = above ? status_of(above.get(), AT_STATX_DONT_SYNC) : std::nullopt;
  if (!folder_status || entry.empty() || !is_local(above.get(), *folder_status)) return {};
  struct stat status = {};
  if (::fstatat(above.get(), entry.c_str(), &status, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0)
    return {.may_wait = errno != ENOENT};
  // Nor is a folder told of: it may be where another file system is mounted.
  if (!S_ISREG(status.st_mode)) return {.may_wait = S_ISLNK(status.st_mode)};
  return {.may_wait = false, .status = status};
}

bool may_wait(const std::string& name) {
  return look_in_memory(name).may_wait;
}

}  // namespace penstock::files
