// Holes: the parts of a file that take no space and read as zeros, and the runs of data between them.
//
// Thread safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace penstock::cli {

// Of a file, or of what a Source gives.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t size_bytes = 0;

  std::uint64_t end() const { return offset + size_bytes; }
};

class Holes {
 public:
  // Of a regular file; anything else has none.
  static Holes of(const std::string& path);
  Holes() = default;
  Holes(Holes&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Holes& operator=(Holes&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Holes();

  // Of the file, for OpenOptions::descriptor: another of this name would have other holes. -1: there is none.
  int descriptor() const { return fd_; }
  // The next run of data within an extent; nothing if the rest is a hole. All of it where the file system can't tell.
  std::optional<Extent> next_data(Extent within) const;
  bool any_in(Extent extent) const;
  // Whether the file is still as long: past its end all looks like a hole.
  bool reaches(std::uint64_t end) const;
  // That the file takes on its disk.
  std::uint64_t allocated_bytes() const;

 private:
  int fd_ = -1;
};

}  // namespace penstock::cli
