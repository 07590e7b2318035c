// FileReader: a file of the kernel's, read for its header and kept open. Tensors are read by a Context, which opens the
// same file by the descriptor.
//
// Thread safety: const calls from any thread. Lifetime: owns a descriptor. Where the server of a file does not answer,
// closing goes on without its owner after five seconds.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "penstock/result.h"
#include "penstock/store.h"

namespace penstock::models {

class FileReader {
 public:
  // Only regular files; opening waits for nobody but who writes to it just now.
  static Result<FileReader> open(const std::string& path);
  FileReader(FileReader&& other) noexcept;
  FileReader& operator=(FileReader&&) = delete;
  ~FileReader();

  int descriptor() const { return fd_; }
  std::uint64_t size_bytes() const { return size_bytes_; }  // when it was opened
  const Identity& identity() const { return identity_; }    // then, as a Store of the file has it
  // False where more than a quarter of the descriptors that the process may have are in use: a load needs two more for
  // each file.
  bool may_stay_open() const;
  // Code::truncated where the file has become shorter.
  Status read(std::uint64_t offset, std::span<char> bytes) const;

 private:
  FileReader(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  int fd_ = -1;
  std::string path_;
  Identity identity_;
  std::uint64_t size_bytes_ = 0;
  bool on_a_disk_ = true;  // others may be a server's, which is told of every close
};

}  // namespace penstock::models
