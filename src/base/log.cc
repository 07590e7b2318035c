#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace penstock {
namespace {

LogLevel level_from_environment() {
  const char* text = std::getenv("PENSTOCK_LOG");
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
  std::string line = "penstock: ";
  line.append(level_name(level)).append(": ").append(message).append("\n");
  // One write, so that lines of several threads and processes don't mix. A closed standard error loses the message.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace penstock
