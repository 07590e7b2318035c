#include "base/log.h"

#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

namespace penstock {
namespace {

LogLevel level_from_environment() {
  const char* text = ::secure_getenv("PENSTOCK_LOG");
  const std::string_view level = text == nullptr ? "" : text;
  if (level == "error") return LogLevel::error;
  if (level == "info") return LogLevel::info;
  return LogLevel::warning;
}

std::string_view level_name(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warning:
      return "warning";
    case LogLevel::info:
      return "info";
  }
  return "error";
}

}  // namespace

void log(LogLevel level, std::string_view message) {
  static const LogLevel threshold = level_from_environment();
  if (level > threshold) return;
  const auto part = [](std::string_view text) { return iovec{const_cast<char*>(text.data()), text.size()}; };
  const std::array line{part("penstock: "), part(level_name(level)), part(": "), part(message), part("\n")};
  // One write, so that lines of several threads and processes don't mix; and none of the memory that may be what lacks.
  // A closed standard error loses the message.
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, line.data(), static_cast<int>(line.size()));
}

}  // namespace penstock
