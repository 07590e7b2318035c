#include "files/may_wait.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "files/mount.h"

namespace penstock::files {
namespace {

// None where the kernel does not have all of the path in memory, or is older than Linux 5.12.
UniqueFd find_in_memory(const char* path) {
  open_how how{};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_CACHED;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how)));
}

struct MountMark {
  std::uint64_t id = 0;
  DeviceNumber device;

  friend bool operator==(const MountMark&, const MountMark&) = default;
};

// Ids are used again when a mount is gone, mostly for other devices.
bool is_local(const MountMark& mark) {
  constexpr std::size_t most_known = 256;
  static std::mutex mutex;
  static std::vector<MountMark> known;
  const std::lock_guard lock(mutex);
  if (std::ranges::find(known, mark) != known.end()) return true;
  std::ifstream file("/proc/self/mountinfo", std::ios::binary);
  const auto mounts = parse_mountinfo(std::string(std::istreambuf_iterator<char>(file), {}));
  const auto mount = std::ranges::find(mounts, mark.id, &Mount::id);
  if (mount == mounts.end() || is_served(mount->type) || mount->type == "autofs") return false;
  if (known.size() == most_known) known.clear();
  known.push_back(mark);
  return true;
}

bool is_local(int fd) {
  struct statx status = {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &status) != 0) return false;
  if ((status.stx_mask & STATX_MNT_ID) == 0) return false;
  return is_local(MountMark{status.stx_mnt_id, {status.stx_dev_major, status.stx_dev_minor}});
}

}  // namespace

bool may_wait(const std::string& name) {
  if (const UniqueFd file = find_in_memory(name.c_str())) return !is_local(file.get());
  // In a folder of a local disk its entry is looked up there; a link may lead elsewhere.
  const std::size_t slash = name.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : name.substr(0, slash + 1);
  const std::string entry = slash == std::string::npos ? name : name.substr(slash + 1);
  const UniqueFd above = find_in_memory(folder.c_str());
  if (!above || entry.empty() || !is_local(above.get())) return true;
  struct stat status = {};
  if (::fstatat(above.get(), entry.c_str(), &status, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0)
    return errno != ENOENT;
  return S_ISLNK(status.st_mode);
}

}  // namespace penstock::files
