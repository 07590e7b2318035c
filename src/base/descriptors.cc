#include "base/descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace penstock {

std::size_t free_descriptors() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  std::error_code failed;
  std::size_t used = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", failed), end; !failed && at != end; at.increment(failed))
    ++used;
  if (failed) {
    // They are given out lowest first.
    const int next = ::open("/", O_PATH | O_CLOEXEC);
    if (next < 0) return 0;
    ::close(next);
    used = static_cast<std::size_t>(next);
  }
  return limit.rlim_cur - std::min<rlim_t>(limit.rlim_cur, used);
}

}  // namespace penstock
