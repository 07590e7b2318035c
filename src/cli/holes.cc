#include "holes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace penstock::cli {

Holes Holes::of(const std::string& path) {
  Holes holes;
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return holes;
  holes.fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  return holes;
}

Holes::~Holes() {
  if (fd_ >= 0) close(fd_);
}

std::optional<Extent> Holes::next_data(Extent within) const {
  if (within.size_bytes == 0) return std::nullopt;
  if (fd_ < 0) return within;
  const off_t data = lseek(fd_, static_cast<off_t>(within.offset), SEEK_DATA);
  if (data < 0) return errno == ENXIO ? std::nullopt : std::optional(within);
  const auto begin = static_cast<std::uint64_t>(data);
  if (begin >= within.end()) return std::nullopt;
  const off_t hole = lseek(fd_, data, SEEK_HOLE);
  const std::uint64_t end = hole < 0 ? within.end() : std::min(within.end(), static_cast<std::uint64_t>(hole));
  return Extent{begin, end - begin};
}

bool Holes::any_in(Extent extent) const {
  if (extent.size_bytes == 0) return false;
  const std::optional<Extent> data = next_data(extent);
  return !data || data->size_bytes != extent.size_bytes;
}

bool Holes::reaches(std::uint64_t end) const {
  struct stat status {};
  return fd_ < 0 || fstat(fd_, &status) != 0 || static_cast<std::uint64_t>(status.st_size) >= end;
}

std::uint64_t Holes::allocated_bytes() const {
  struct stat status {};
  return fd_ >= 0 && fstat(fd_, &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512 : 0;
}

}  // namespace penstock::cli
