#include "engines/uring/refusal.h"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace penstock::uring {
namespace {

constexpr const char* allow_all_calls =
    "start the container with a seccomp profile that allows io_uring_setup, io_uring_enter and "
    "io_uring_register (docker run --security-opt seccomp=PROFILE)";

engine::Probe explain_not_permitted(std::optional<int> disabled) {
  switch (disabled.value_or(0)) {
    case 1:
      return {false, "only privileged users may use io_uring (kernel.io_uring_disabled is 1)",
              "sysctl kernel.io_uring_disabled=0, or add this user to the group in kernel.io_uring_group"};
    case 2:
      return {false, "io_uring is switched off on this machine (kernel.io_uring_disabled is 2)",
              "sysctl kernel.io_uring_disabled=0"};
    default:
      return {false, "a security filter refuses io_uring, as in most containers", allow_all_calls};
  }
}

}  // namespace

engine::Probe explain_refusal(int error, std::optional<int> disabled) {
  switch (error) {
    case ENOSYS:
      return {false, "the kernel has no io_uring: it is too old, was built without it, or a sandbox hides it",
              "use Linux 5.11 or newer with CONFIG_IO_URING"};
    case EPERM:
    case EACCES:
      return explain_not_permitted(disabled);
    case ENOMEM:
      return {false, "the kernel has no lockable memory left for a ring", "raise the limit (ulimit -l)"};
    case EMFILE:
    case ENFILE:
      return {false, "too many files are open to create a ring", "close some, or raise the limit (ulimit -n)"};
    case EOPNOTSUPP:
      return {false, "the kernel's io_uring lacks operations that this engine needs", "use Linux 5.11 or newer"};
    default:
      return {false, std::string("io_uring can't be set up: ") + std::strerror(error), ""};
  }
}

engine::Probe explain_refused_use(int error) {
  return {false,
          std::string("io_uring_enter was refused, although rings can be created: ") + std::strerror(error) +
              "; a security filter allows only a part of io_uring",
          allow_all_calls};
}

std::optional<int> io_uring_disabled() {
  std::ifstream file("/proc/sys/kernel/io_uring_disabled");
  int value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

}  // namespace penstock::uring
