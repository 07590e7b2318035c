#include "files/guarded_copy.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/unique_fd.h"

namespace penstock::files {
namespace {

// What a pipe holds (pipe(7)). One that holds less takes a part of it: nothing here waits.
constexpr std::size_t pipe_bytes = 64 << 10;
constexpr std::size_t call_bytes = 256 << 20;

void advance(Copy& copy, std::size_t bytes) {
  copy.to += bytes;
  copy.from += bytes;
  copy.bytes -= bytes;
}

int drain(int fd, std::byte* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::read(fd, to, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EPIPE;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return 0;
}

}  // namespace

int copy_by_process_vm(Copy copy) {
  const pid_t self = ::getpid();
  while (copy.bytes > 0) {
    const std::size_t bytes = std::min(copy.bytes, call_bytes);
    const iovec to{copy.to, bytes};
    const iovec from{const_cast<std::byte*>(copy.from), bytes};
    const ssize_t copied = ::process_vm_readv(self, &to, 1, &from, 1, 0);
    if (copied < 0) return errno;
    if (copied == 0) return EFAULT;
    advance(copy, static_cast<std::size_t>(copied));
  }
  return 0;
}

int copy_by_pipe(Copy copy) {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return errno;
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  while (copy.bytes > 0) {
    const ssize_t written = ::write(in.get(), copy.from, std::min(copy.bytes, pipe_bytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return written < 0 ? errno : EFAULT;
    if (const int error = drain(out.get(), copy.to, static_cast<std::size_t>(written)); error != 0) return error;
    advance(copy, static_cast<std::size_t>(written));
  }
  return 0;
}

int guarded_copy(Copy copy) {
  const int error = copy_by_process_vm(copy);
  return error == EPERM || error == ENOSYS ? copy_by_pipe(copy) : error;
}

}  // namespace penstock::files
