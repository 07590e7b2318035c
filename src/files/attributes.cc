#include "files/attributes.h"

#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace penstock::files {
namespace {

// acl(5), as the kernel hands it out.
constexpr const char* acl = "system.posix_acl_access";
// The kernel takes the first from a file that is written to; the others are hashes of the old content.
constexpr std::array<std::string_view, 3> of_content = {"security.capability", "security.ima", "security.evm"};

// Of calls that tell a size first; what they tell may have grown since. Nothing if they fail.
template <typename Call>
std::optional<std::vector<char>> read_all(const Call& call) {
  for (;;) {
    const ssize_t size = call(nullptr, 0);
    if (size < 0) return std::nullopt;
    std::vector<char> bytes(static_cast<std::size_t>(size));
    const ssize_t got = size == 0 ? 0 : call(bytes.data(), bytes.size());
    if (got < 0 && errno == ERANGE) continue;
    if (got < 0) return std::nullopt;
    bytes.resize(static_cast<std::size_t>(got));
    return bytes;
  }
}

// None on a file system that has no attributes.
std::vector<std::string> names_of(const std::string& path) {
  const std::vector<char> text = read_all([&](char* to, std::size_t size) {
                                   return ::listxattr(path.c_str(), to, size);
                                 }).value_or(std::vector<char>());
  std::vector<std::string> names;
  for (auto at = text.begin(); at != text.end();) {
    const auto end = std::find(at, text.end(), '\0');
    names.emplace_back(at, end);
    at = end == text.end() ? end : end + 1;
  }
  return names;
}

Status take_attribute(int fd, const std::string& path, const std::string& name) {
  const auto value =
      read_all([&](char* to, std::size_t size) { return ::getxattr(path.c_str(), name.c_str(), to, size); });
  if (!value && errno == ENODATA) return {};  // removed meanwhile
  if (value && ::fsetxattr(fd, name.c_str(), value->data(), value->size(), 0) == 0) return {};
  const Error error =
      system_error(errno, "keep the attribute " + name + " of " + path, "write in place, or remove the file first");
  if (name == acl) return error;
  log(LogLevel::warning, error.message);
  return {};
}

}  // namespace

Status take_attributes(int fd, const std::string& path, const struct stat& old) {
  // Only root can give a file away; for everybody else the owner is right already or can't be kept.
  [[maybe_unused]] const int given = ::fchown(fd, old.st_uid, old.st_gid);
  // What the folder gives to new files, before the mode makes it count.
  [[maybe_unused]] const int removed = ::fremovexattr(fd, acl);
  if (::fchmod(fd, old.st_mode & 0777) != 0) return system_error(errno, "set the mode of the new " + path);
  for (const std::string& name : names_of(path)) {
    if (std::ranges::find(of_content, name) != of_content.end()) continue;
    if (Status status = take_attribute(fd, path, name); !status) return status;
  }
  return {};
}

}  // namespace penstock::files
