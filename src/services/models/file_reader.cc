#include "services/models/file_reader.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/bounded.h"
#include "base/open_hint.h"
#include "base/writers.h"
#include "services/models/contents.h"

namespace penstock::models {

namespace {

constexpr double closing_seconds = 5;

}  // namespace

Result<FileReader> FileReader::open(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for somebody to write.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(errno, "open " + path, open_hint(errno, path, Access::read));
  FileReader file(fd, path);
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "ask about " + path);
  if (S_ISDIR(status.st_mode)) {
    return Error{Code::is_directory, EISDIR, path + " is a directory", "name a file, or only the directory"};
  }
  if (!S_ISREG(status.st_mode)) return Error{Code::unsupported, 0, path + " is not a regular file", "name a file"};
  auto identity = Identity::of_file(fd);
  if (!identity) return std::move(identity).error();
  file.identity_ = std::move(*identity);
  file.size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  file.on_a_disk_ = major(status.st_dev) != 0;
  await_writers(fd, file.size_bytes_);
  return file;
}

FileReader::FileReader(FileReader&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      path_(std::move(other.path_)),
      identity_(std::move(other.identity_)),
      size_bytes_(other.size_bytes_),
      on_a_disk_(other.on_a_disk_) {}

FileReader::~FileReader() {
  if (fd_ < 0) return;
  if (on_a_disk_) {
    ::close(fd_);
  } else {
    static_cast<void>(comes_back(closing_seconds, [fd = fd_] { ::close(fd); }));
  }
}

bool FileReader::may_stay_open() const {
  // They are given out lowest first.
  struct rlimit limit = {};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(fd_) < limit.rlim_cur / 4;
}

Status FileReader::read(std::uint64_t offset, std::span<char> bytes) const {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = ::pread(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(errno, "read " + path_);
    if (got == 0) return in_file(path_, ends_early("it became shorter during the read"));
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace penstock::models
