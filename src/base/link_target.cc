#include "base/link_target.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace penstock {
namespace {

namespace fs = std::filesystem;

// As many as the kernel follows (path_resolution(7)).
constexpr int max_links = 40;

bool is_safe_from_others(const struct stat& folder, const struct stat& entry) {
  return !is_shared_folder(folder) || entry.st_uid == ::geteuid() || entry.st_uid == folder.st_uid;
}

// Looked at after the link was read: another user can't exchange his for a link of this user.
Status check_link(const fs::path& link) {
  struct stat folder = {};
  struct stat own = {};
  if (::stat(link.parent_path().c_str(), &folder) != 0) {
    return system_error(errno, "open the folder of " + link.string());
  }
  if (::lstat(link.c_str(), &own) != 0) own.st_uid = static_cast<uid_t>(-1);  // it is gone: nobody's
  if (is_safe_from_others(folder, own)) return {};
  return Error{Code::permission_denied, EACCES,
               link.string() + " is a link of another user, in a folder that every user may write to",
               "name the file that is meant, or remove the link"};
}

}  // namespace

bool is_shared_folder(const struct stat& folder) {
  return (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
}

Result<fs::path> link_target(const std::string& name) {
  std::error_code error;
  fs::path path = fs::absolute(name, error);
  if (error) return system_error(error.value(), "find the working folder", "change to a folder that exists");
  for (int links = 0; links < max_links; ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) return path;
    if (Status followed = check_link(path); !followed) return std::move(followed).error();
    path = path.parent_path() / next;
  }
  return system_error(ELOOP, "replace " + name);
}

Status check_own_in_shared_folder(const struct stat& folder, const struct stat& file, const std::string& path) {
  if (is_safe_from_others(folder, file)) return {};
  return Error{Code::permission_denied, EACCES,
               path + " belongs to user " + std::to_string(file.st_uid) + ", in a folder that every user may write to",
               "choose another name or folder, or remove the file"};
}

}  // namespace penstock
