#include "files/attributes.h"

#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>
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

struct Source {
  std::string by;           // a path to the file, whatever its name means by now
  const std::string& path;  // for messages
};

Status take_attribute(int fd, const Source& from, const std::string& name) {
  const std::string& path = from.path;
  const auto value =
      read_all([&](char* to, std::size_t size) { return ::getxattr(from.by.c_str(), name.c_str(), to, size); });
  if (!value && errno == ENODATA) return {};  // removed meanwhile
  if (value && ::fsetxattr(fd, name.c_str(), value->data(), value->size(), 0) == 0) return {};
  const Error error =
      system_error(errno, "keep the attribute " + name + " of " + path, "write in place, or remove the file first");
  if (name == acl) return error;
  log(LogLevel::warning, error.message);
  return {};
}

}  // namespace

Status take_attributes(int fd, const AttributesOf& from) {
  const struct stat& old = from.status;
  const std::string& path = from.path;
  std::string by_descriptor = "/proc/self/fd/" + std::to_string(from.file);
  const Source source{::access(by_descriptor.c_str(), F_OK) == 0 ? std::move(by_descriptor) : path, path};
  // Only root can give a file away; others can give it to a group of theirs. What the old group may do with it is not
  // for the members of another.
  struct stat own = {};
  const bool keeps_group = ::fchown(fd, old.st_uid, old.st_gid) == 0 || ::fchown(fd, -1, old.st_gid) == 0 ||
                           (::fstat(fd, &own) == 0 && own.st_gid == old.st_gid);
  // What the folder gives to new files.
  [[maybe_unused]] const int removed = ::fremovexattr(fd, acl);
  for (const std::string& name : names_of(source.by)) {
    if (std::ranges::find(of_content, name) != of_content.end()) continue;
    if (name == acl && !keeps_group) {
      return Error{Code::permission_denied, EPERM, "keep the access list of " + path + ": its group can't be kept",
                   "write in place, or as a member of its group"};
    }
    if (Status status = take_attribute(fd, source, name); !status) return status;
  }
  // Last: with the list's mask as bits of the group, the group could do more until the list is there.
  const mode_t mode = old.st_mode & (keeps_group ? 0777 : 0707);
  if (::fchmod(fd, mode) != 0) return system_error(errno, "set the mode of the new " + path);
  return {};
}

}  // namespace penstock::files
