#include "files/file_kind.h"

#include <sys/sysmacros.h>

#include <cerrno>

namespace penstock::files {
namespace {

// Documentation/admin-guide/devices.txt of the kernel.
constexpr unsigned memory_major = 1;
constexpr unsigned null_minor = 3;
constexpr unsigned zero_minor = 5;

bool is_terminal(unsigned major) {
  constexpr unsigned virtual_and_serial = 4;
  constexpr unsigned own = 5;
  constexpr unsigned first_pseudo = 136;
  constexpr unsigned last_pseudo = 143;
  return major == virtual_and_serial || major == own || (major >= first_pseudo && major <= last_pseudo);
}

struct Kind {
  std::string what;
  std::string instead_of_reading;
  std::string instead_of_writing;
};

Kind kind_of_character_device(dev_t device) {
  const unsigned major = gnu_dev_major(device);
  const unsigned minor = gnu_dev_minor(device);
  if (major == memory_major && minor == null_minor) {
    return {"the null device, which contains nothing", "name a file or a block device",
            "name a file: what is written there is lost"};
  }
  if (major == memory_major && minor == zero_minor) {
    return {"an endless device of zeros", "make a file of zeros: truncate --size SIZE FILE",
            "name a file or a block device"};
  }
  if (is_terminal(major)) return {"a terminal", "name a file or a block device", "name a file or a block device"};
  return {"a character device, which has no offsets", "copy a part of it to a file first, with head or dd",
          "name a file or a block device"};
}

Kind kind_of(const struct stat& status, const std::string& name) {
  if (S_ISFIFO(status.st_mode)) {
    return {"a pipe, which has no offsets", "copy it to a file first: penstock write - FILE < " + name,
            "write to a file, then: cat FILE > " + name};
  }
  if (S_ISSOCK(status.st_mode)) {
    return {"a socket, which has no offsets", "name a file or a block device", "name a file or a block device"};
  }
  return kind_of_character_device(status.st_rdev);
}

}  // namespace

Status check_kind(const struct stat& status, const std::string& name, Access access) {
  if (S_ISREG(status.st_mode)) return {};
  if (S_ISDIR(status.st_mode)) return Error{Code::is_directory, EISDIR, name + " is a directory", "name a file in it"};
  if (S_ISBLK(status.st_mode)) {
    if (access != Access::replace) return {};
    return Error{Code::unsupported, 0, name + " is a block device, and can't be replaced by a file",
                 "write to it in place"};
  }
  Kind kind = kind_of(status, name);
  return Error{Code::unsupported, 0, name + " is " + kind.what,
               access == Access::read ? std::move(kind.instead_of_reading) : std::move(kind.instead_of_writing)};
}

}  // namespace penstock::files
