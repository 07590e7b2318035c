// Scratch: a file without a name, to measure with. It is gone when closed, however this process ends.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "penstock/result.h"

namespace penstock::cli {

class Scratch {
 public:
  // In a directory, or in that of a file. Its bytes are such that nothing below can compress or leave them out.
  static Result<Scratch> create(const std::string& near, std::uint64_t size_bytes);

  Scratch(Scratch&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch();

  // A name for as long as this lives, within this process.
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }
  // The same for processes that this one starts.
  std::string path_for_children() const;

 private:
  explicit Scratch(int fd) : fd_(fd) {}
  Status fill(std::uint64_t size_bytes) const;

  int fd_;
};

}  // namespace penstock::cli
