#include "scratch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "interrupt.h"
#include "source.h"

namespace penstock::cli {

Result<Scratch> Scratch::create(const std::string& near, std::uint64_t size_bytes) {
  const std::filesystem::path path(near);
  std::error_code ignored;
  const std::filesystem::path folder =
      std::filesystem::is_directory(path, ignored) ? path : std::filesystem::absolute(path, ignored).parent_path();
  std::string name = (folder / ".penstock-scratch-XXXXXX").string();
  Scratch scratch(mkostemp(name.data(), O_CLOEXEC));
  if (scratch.fd_ < 0) return system_error(errno, "make a file in " + folder.string());
  unlink(name.c_str());
  if (Status filled = scratch.fill(size_bytes); !filled.ok()) return filled.error();
  return scratch;
}

Scratch::~Scratch() {
  if (fd_ >= 0) close(fd_);
}

std::string Scratch::path_for_children() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

Status Scratch::fill(std::uint64_t size_bytes) const {
  std::vector<std::byte> window(8 << 20);
  const auto source = pattern_source({.size_bytes = size_bytes, .seed = 1});
  for (;;) {
    const Result<std::uint64_t> filled = source->fill(Region::host(window.data(), window.size()));
    if (!filled.ok()) return filled.error();
    if (*filled == 0) break;
    for (std::uint64_t done = 0; done < *filled;) {
      if (interrupted()) return interrupted_error();
      const ssize_t put = write(fd_, window.data() + done, *filled - done);
      if (put < 0 && errno != EINTR) return system_error(errno, "write the scratch file");
      done += static_cast<std::uint64_t>(std::max<ssize_t>(put, 0));
    }
  }
  return fsync(fd_) == 0 ? Status() : system_error(errno, "sync the scratch file");
}

}  // namespace penstock::cli
