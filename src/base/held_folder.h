// HeldFolder: a folder that is held open, and PathBeneath: what lies beneath it. Other users may put a symbolic link in
// the place of anything beneath the folder at any time. No link is followed here, so no path leads out of the folder.
//
// Thread safety: const functions may run concurrently. Lifetime: a HeldFolder owns its descriptor, and must outlive and
// stay where the PathBeneaths that refer to it expect it.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/result.h"

namespace penstock {

class HeldFolder {
 public:
  HeldFolder() = default;
  // Follows links: `path` is what the user has named. The descriptor is opened with O_PATH.
  static Result<HeldFolder> open(std::string path);

  int get() const { return fd_.get(); }
  const std::string& path() const { return path_; }  // for messages

  // As openat(2), but for links: with ELOOP or ENOTDIR in errno where one is met, at the end of `name` too. "" is the
  // folder itself. Interrupted calls are repeated. REQUIRES: O_PATH only together with O_DIRECTORY.
  UniqueFd open(const std::string& name, int flags, mode_t mode = 0) const;

 private:
  HeldFolder(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
};

struct PathBeneath {
  const HeldFolder* folder = nullptr;
  std::string name;  // relative, without ".."; "" is the folder itself

  std::string text() const { return name.empty() ? folder->path() : folder->path() + "/" + name; }
  PathBeneath operator/(std::string_view below) const;
  // The folder that it lies in. REQUIRES: not the folder itself.
  PathBeneath parent() const;
  std::string last() const { return name.substr(name.rfind('/') + 1); }
  UniqueFd open(int flags, mode_t mode = 0) const { return folder->open(name, flags, mode); }
};

// The folder that `path` lies in, held with O_PATH, and the name there, for the calls that end in "at".
class NameInFolder {
 public:
  explicit NameInFolder(const PathBeneath& path);
  // False: the folder can't be opened, and errno says why.
  explicit operator bool() const { return static_cast<bool>(folder_); }
  int folder() const { return folder_.get(); }
  const char* name() const { return name_.c_str(); }

 private:
  UniqueFd folder_;
  std::string name_;
};

// Whether both are one file or folder.
inline bool is_same_file(const struct stat& one, const struct stat& other) {
  return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

}  // namespace penstock
