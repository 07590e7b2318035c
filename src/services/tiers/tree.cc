#include "services/tiers/tree.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/checksum.h"
#include "services/tiers/fault_point.h"
#include "services/tiers/folder.h"
#include "services/tiers/names.h"

namespace penstock::tiers {
namespace {

constexpr std::size_t max_entries = 10'000'000;
constexpr std::uint64_t protected_attributes = STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND;
constexpr int max_listed_depth = 200;  // each has a descriptor while it is listed

Error refused(const std::string& path, const std::string& why, const std::string& hint) {
  return {Code::unsupported, 0, shown(path) + " " + why, hint};
}

// Files that are made as they are read, as in /proc.
bool has_bytes(int folder, const std::string& name) {
  const UniqueFd file(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  char byte = 0;
  return file && ::pread(file.get(), &byte, 1, 0) == 1;
}

Error is_protected(const std::string& path) {
  return {Code::permission_denied, EPERM, path + " is protected, so nothing can be moved away or removed there",
          "allow it with `chattr -i -a`"};
}

Status check_removable(int folder, const std::string& name, const std::string& path, int depth) {
  if (depth > max_listed_depth) return refused(path, "is nested too deeply", "");
  struct statx facts = {};
  if (::statx(folder, name.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE, &facts) != 0) {
    return errno == ENOENT ? Status() : system_error(errno, "look at " + path);
  }
  if ((facts.stx_attributes & protected_attributes) != 0) return is_protected(path);
  if ((facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
    return Error{Code::in_use, EBUSY, path + " is a mount: what is there belongs to something else",
                 "unmount it first"};
  }
  if (!S_ISDIR(facts.stx_mode)) return {};
  const UniqueFd below(::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!below) return system_error(errno, "list " + path);
  const auto names = list_names(below.get(), path);
  if (!names) return names.error();
  for (const std::string& each : *names) {
    if (Status fine = check_removable(below.get(), each, path + "/" + each, depth + 1); !fine) return fine;
  }
  return {};
}

// Old kernels don't tell, and only another device shows there.
bool is_mounted_on(int folder, const char* name) {
  struct statx facts = {};
  if (::statx(folder, name, AT_SYMLINK_NOFOLLOW, 0, &facts) != 0) return false;
  return (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

// Holes take no space, and their checksum takes as long as that of as many bytes.
bool has_endless_holes(const struct stat& file, std::uint64_t file_system_bytes) {
  constexpr std::uint64_t times = 4;  // disks may have been thin, and files compressed
  const auto size = static_cast<std::uint64_t>(file.st_size);
  const std::uint64_t taken = static_cast<std::uint64_t>(file.st_blocks) * 512;
  return file_system_bytes != 0 && size > taken && (size - taken) / times > file_system_bytes;
}

// Whether a relative link within `folder` (below the unit, "" for the unit itself) stays within the unit.
bool stays_within(const std::string& folder, const std::string& target) {
  if (target.starts_with('/')) return true;  // means the same from everywhere
  long depth = folder.empty() ? 0 : 1 + std::ranges::count(folder, '/');
  for (std::size_t begin = 0; begin <= target.size();) {
    const std::size_t end = std::min(target.find('/', begin), target.size());
    const std::string_view part = std::string_view(target).substr(begin, end - begin);
    if (part == "..") {
      if (--depth < 0) return false;
    } else if (!part.empty() && part != ".") {
      ++depth;
    }
    begin = end + 1;
  }
  return true;
}

class Scanner {
 public:
  explicit Scanner(const PathBeneath& path) : at_(path), name_(path.last()), path_(path.text()) {}

  Result<Tree> run() {
    struct stat status = {};
    if (!at_ || ::fstatat(at_.folder(), at_.name(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      return file_error(errno, "look at " + path_);
    }
    device_ = status.st_dev;
    struct statvfs system = {};
    if (::fstatvfs(at_.folder(), &system) == 0) file_system_bytes_ = std::uint64_t{system.f_blocks} * system.f_frsize;
    tree_.inode = status.st_ino;
    if (S_ISLNK(status.st_mode)) {
      return refused(path_, "is a symbolic link", "move what it points to, and name that");
    }
    if (S_ISDIR(status.st_mode)) {
      tree_.kind = UnitKind::directory;
      fault_point("looking");
      const UniqueFd folder(::openat(at_.folder(), at_.name(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
      if (!folder) return file_error(errno, "list " + path_);
      tree_.entries.push_back({.name = "", .kind = Entry::Kind::directory, .status = status});
      if (Status listed = list(folder.get(), status, "", 0); !listed) return std::move(listed).error();
    } else {
      if (Status added = add("", status, at_.folder(), name_); !added) return std::move(added).error();
    }
    for (const auto& [inode, seen] : names_) {
      if (seen.count != seen.all) {
        return refused(path_ + (seen.first.empty() ? "" : "/" + seen.first), "is a file with other names elsewhere",
                       "a move would cut them off; copy the file, or remove the other hard links");
      }
    }
    tree_.identity = identity();
    return std::move(tree_);
  }

 private:
  struct Names {
    std::string first;
    std::uint64_t count = 0;
    std::uint64_t all = 0;
  };

  // `seen`: what the folder was when its entry was added.
  Status list(int folder, const struct stat& seen, const std::string& name, int depth) {
    if (depth > max_listed_depth) return refused(path_, "is nested too deeply", "");
    const std::string whole_path = name.empty() ? path_ : path_ + "/" + name;
    struct stat own = {};
    if (::fstat(folder, &own) != 0) return system_error(errno, "look at " + whole_path);
    if (!is_same_file(own, seen)) {
      return Error{Code::changed, 0, whole_path + " was replaced while it was looked at", "try again"};
    }
    const auto found = list_names(folder, whole_path);
    if (!found) return found.error();
    for (const std::string& last : *found) {
      struct stat status = {};
      const std::string whole = name.empty() ? last : name + "/" + last;
      if (::fstatat(folder, last.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return system_error(errno, "look at " + path_ + "/" + whole);
      }
      if (Status added = add(whole, status, folder, last); !added) return added;
      if (!S_ISDIR(status.st_mode)) continue;
      const UniqueFd below(::openat(folder, last.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
      if (!below) return file_error(errno, "list " + path_ + "/" + whole);
      if (Status listed = list(below.get(), status, whole, depth + 1); !listed) return listed;
    }
    return {};
  }

  Status add(const std::string& name, const struct stat& status, int folder, const std::string& last) {
    const std::string whole = name.empty() ? path_ : path_ + "/" + name;
    if (tree_.entries.size() >= max_entries) return refused(path_, "has too many entries to move as one", "");
    if (status.st_dev != device_) return refused(whole, "is on another file system", "unmount it, or take it alone");
    if (!name.empty() && is_mounted_on(folder, last.c_str())) return refused(whole, "is a mount", "unmount it");
    Entry entry{.name = name, .status = status};
    if (S_ISDIR(status.st_mode)) {
      entry.kind = Entry::Kind::directory;
    } else if (S_ISLNK(status.st_mode)) {
      entry.kind = Entry::Kind::link;
      std::array<char, 4096> target{};
      const ssize_t length = ::readlinkat(folder, last.c_str(), target.data(), target.size());
      if (length < 0) return system_error(errno, "read the link " + whole);
      entry.target.assign(target.data(), static_cast<std::size_t>(length));
      const std::string above = name.find('/') == std::string::npos ? "" : name.substr(0, name.rfind('/'));
      if (entry.target.starts_with(path_ + "/")) {
        return refused(whole, "is a link that leads to where the unit lies now, " + shown(entry.target),
                       "make it relative");
      }
      if (!stays_within(above, entry.target)) {
        return refused(whole, "is a link that leads out of the unit, to " + shown(entry.target),
                       "take the folder that has both as one unit");
      }
    } else if (!S_ISREG(status.st_mode)) {
      return refused(whole, "is neither a file nor a directory", "remove it, or take its neighbours by themselves");
    } else if (status.st_size == 0 && has_bytes(folder, last)) {
      return refused(whole, "has bytes, but tells no size", "copy what can be read of it to a file");
    } else if (has_endless_holes(status, file_system_bytes_)) {
      return refused(whole, "has holes that are many times as long as its file system", "copy what is in it to a file");
    } else {
      Names& names = names_[status.st_ino];
      names.all = status.st_nlink;
      if (names.count++ == 0) {
        names.first = name;
        const auto size = static_cast<std::uint64_t>(status.st_size);
        constexpr std::uint64_t block = 4096;
        tree_.size_bytes += size;
        const std::uint64_t taken = static_cast<std::uint64_t>(status.st_blocks) * 512;
        tree_.room_bytes +=
            (std::min(std::max(taken, std::min(size, block)), size + block) + block - 1) / block * block;
        ++tree_.files;
      } else {
        entry.kind = Entry::Kind::same;
        entry.target = names.first;
      }
    }
    tree_.entries.push_back(std::move(entry));
    return {};
  }

  std::string identity() const {
    if (tree_.kind == UnitKind::file) return identity_of(tree_.entries.front().status);
    Checksum sum;
    const auto add = [&](std::string_view text) {
      sum.add(std::as_bytes(std::span(text.data(), text.size())));
      sum.add(std::as_bytes(std::span("", 1)));
    };
    for (const Entry& entry : tree_.entries) {
      add(entry.name);
      add(std::to_string(static_cast<int>(entry.kind)));
      add(entry.target);
      if (entry.kind == Entry::Kind::file) add(identity_of(entry.status));
    }
    return sum.hex();
  }

  const NameInFolder at_;
  const std::string name_;  // of the unit in its folder
  const std::string path_;
  dev_t device_ = 0;
  std::uint64_t file_system_bytes_ = 0;  // 0: not known
  std::map<ino_t, Names> names_;
  Tree tree_;
};

}  // namespace

bool is_mount(int folder) {
  struct statx facts = {};
  if (::statx(folder, "", AT_EMPTY_PATH, 0, &facts) != 0) return false;
  return (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

Status check_unprotected(const PathBeneath& folder) {
  struct statx facts = {};
  const UniqueFd fd = folder.open(O_PATH | O_DIRECTORY);
  if (!fd || ::statx(fd.get(), "", AT_EMPTY_PATH, 0, &facts) != 0) {
    return errno == ENOENT ? Status() : file_error(errno, "look at " + folder.text());
  }
  return (facts.stx_attributes & protected_attributes) != 0 ? is_protected(folder.text()) : Status();
}

Status check_removable(const PathBeneath& path) {
  const NameInFolder at(path);
  if (at) return check_removable(at.folder(), at.name(), path.text(), 0);
  return errno == ENOENT ? Status() : file_error(errno, "look at " + path.text());
}

std::string identity_of(const struct stat& file) {
  return std::to_string(file.st_size) + ":" + std::to_string(file.st_mtim.tv_sec) + "." +
         std::to_string(file.st_mtim.tv_nsec);
}

bool are_same_files(const Tree& one, const Tree& other) {
  return std::ranges::equal(one.entries, other.entries, [](const Entry& a, const Entry& b) {
    return a.name == b.name && is_same_file(a.status, b.status);
  });
}

Result<UniqueFd> open_entry(const PathBeneath& path, const Entry& entry, int flags) {
  UniqueFd file = path.open(O_RDONLY | O_NONBLOCK | flags);
  struct stat status = {};
  if (!file || ::fstat(file.get(), &status) != 0) return file_error(errno, "open " + path.text());
  if (is_same_file(status, entry.status)) return file;
  return Error{Code::changed, 0, path.text() + " was replaced by another file meanwhile",
               "nothing else may write there"};
}

Result<Tree> scan(const PathBeneath& path) {
  return Scanner(path).run();
}

Result<Tree> glance(const PathBeneath& path) {
  const auto status = look_at(path);
  if (!status) return status.error();
  if (status->st_ino == 0) return file_error(ENOENT, "look at " + path.text());
  if (!S_ISREG(status->st_mode)) return scan(path);
  Tree tree;
  tree.inode = status->st_ino;
  tree.size_bytes = static_cast<std::uint64_t>(status->st_size);
  tree.identity = identity_of(*status);
  tree.entries.push_back({.name = "", .status = *status});
  return tree;
}

}  // namespace penstock::tiers
