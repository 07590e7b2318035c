#include "standard_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "interrupt.h"
#include "source.h"

namespace penstock::cli {

namespace {

Error no_reader(int error) {
  return {.code = code_from_errno(error),
          .system_error = error,
          .message = std::string("write to standard output: ") + std::strerror(error),
          .hint = error == EPIPE ? "the program that reads it has exited" : ""};
}

// A pipe that does not wait, though whoever shares it may; other outputs as they are.
int own_output(int output) {
  struct stat status {};
  if (::fstat(output, &status) != 0 || !S_ISFIFO(status.st_mode)) return output;
  const std::string path = "/proc/self/fd/" + std::to_string(output);
  const int opened = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  return opened >= 0 ? opened : output;
}

}  // namespace

Result<StandardOutput> StandardOutput::take() {
  if (isatty(STDOUT_FILENO) != 0) {
    return Error{.code = Code::invalid_argument,
                 .message = "standard output is a terminal",
                 .hint = "redirect it to a file or a pipe"};
  }
  const int output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
  if (output < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    return system_error(errno, "use standard output");
  }
  return StandardOutput(own_output(output));
}

Status StandardOutput::write(std::span<const std::byte> bytes, const Deadline& deadline) const {
  constexpr std::size_t step_bytes = 1 << 20;
  constexpr int between_looks_ms = 100;
  while (!bytes.empty()) {
    if (interrupted()) return interrupted_error();
    if (deadline.passed()) {
      return Error{.code = Code::timed_out,
                   .message = "the reader of standard output had not taken everything by the deadline",
                   .hint = "raise --deadline, or leave it out"};
    }
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), step_bytes));
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      ::poll(&ready, 1, between_looks_ms);
    } else if (written < 0 && errno == EBADF) {
      return closed_stream("standard output");
    } else if (written < 0 && errno != EINTR) {
      return no_reader(errno);
    } else if (written > 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }
  return {};
}

}  // namespace penstock::cli
