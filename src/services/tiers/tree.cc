#include "services/tiers/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <memory>
#include <utility>

#include "base/unique_fd.h"
#include "penstock/checksum.h"
#include "services/tiers/names.h"

namespace penstock::tiers {
namespace {

constexpr std::size_t max_entries = 10'000'000;
constexpr std::uint64_t protected_attributes = STATX_ATTR_IMMUTABLE | STATX_ATTR_APPEND;
constexpr int max_depth = 200;  // each has a descriptor while it is listed

struct CloseDirectory {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

Error refused(const std::string& path, const std::string& why, const std::string& hint) {
  return {Code::unsupported, 0, shown(path) + " " + why, hint};
}

// Files that are made as they are read, as in /proc.
bool has_bytes(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW));
  char byte = 0;
  return file && ::pread(file.get(), &byte, 1, 0) == 1;
}

// The names in a folder, sorted.
Status list_names(int folder, const std::string& path, std::vector<std::string>& names) {
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, CloseDirectory> stream(own < 0 ? nullptr : ::fdopendir(own));
  if (!stream) return system_error(errno, "list " + path);
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string_view text = entry->d_name;
    if (text != "." && text != "..") names.emplace_back(text);
  }
  if (errno != 0) return system_error(errno, "list " + path);
  std::ranges::sort(names);
  return {};
}

Error is_protected(const std::string& path) {
  return {Code::permission_denied, EPERM, path + " is protected, so nothing can be moved away or removed there",
          "allow it with `chattr -i -a`"};
}

Status check_removable(int folder, const std::string& name, const std::string& path, int depth) {
  if (depth > max_depth) return refused(path, "is nested too deeply", "");
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
  std::vector<std::string> names;
  if (Status listed = list_names(below.get(), path, names); !listed) return listed;
  for (const std::string& each : names) {
    if (Status fine = check_removable(below.get(), each, path + "/" + each, depth + 1); !fine) return fine;
  }
  return {};
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
  explicit Scanner(std::string path) : path_(std::move(path)) {}

  Result<Tree> run() {
    struct stat status = {};
    if (::lstat(path_.c_str(), &status) != 0) return system_error(errno, "look at " + path_);
    device_ = status.st_dev;
    tree_.inode = status.st_ino;
    if (S_ISLNK(status.st_mode)) {
      return refused(path_, "is a symbolic link", "move what it points to, and name that");
    }
    if (S_ISDIR(status.st_mode)) {
      tree_.kind = UnitKind::directory;
      const UniqueFd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
      if (!folder) return system_error(errno, "list " + path_);
      tree_.entries.push_back({.name = "", .kind = Entry::Kind::directory, .status = status});
      if (Status listed = list(folder.get(), "", 0); !listed) return std::move(listed).error();
    } else {
      if (Status added = add("", status, -1, ""); !added) return std::move(added).error();
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

  Status list(int folder, const std::string& name, int depth) {
    if (depth > max_depth) return refused(path_, "is nested too deeply", "");
    std::vector<std::string> found;
    if (Status listed = list_names(folder, path_ + "/" + name, found); !listed) return listed;
    for (const std::string& last : found) {
      struct stat status = {};
      const std::string whole = name.empty() ? last : name + "/" + last;
      if (::fstatat(folder, last.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return system_error(errno, "look at " + path_ + "/" + whole);
      }
      if (Status added = add(whole, status, folder, last); !added) return added;
      if (!S_ISDIR(status.st_mode)) continue;
      const UniqueFd below(::openat(folder, last.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
      if (!below) return system_error(errno, "list " + path_ + "/" + whole);
      if (Status listed = list(below.get(), whole, depth + 1); !listed) return listed;
    }
    return {};
  }

  Status add(const std::string& name, const struct stat& status, int folder, const std::string& last) {
    const std::string whole = name.empty() ? path_ : path_ + "/" + name;
    if (tree_.entries.size() >= max_entries) return refused(path_, "has too many entries to move as one", "");
    if (status.st_dev != device_) return refused(whole, "is on another file system", "unmount it, or take it alone");
    if (folder >= 0 && is_mounted_on(folder, last.c_str())) return refused(whole, "is a mount", "unmount it");
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
    } else if (status.st_size == 0 && has_bytes(whole)) {
      return refused(whole, "has bytes, but tells no size", "copy what can be read of it to a file");
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

  const std::string path_;
  dev_t device_ = 0;
  std::map<ino_t, Names> names_;
  Tree tree_;
};

}  // namespace

// Old kernels don't tell, and only another device shows there.
bool is_mounted_on(int folder, const char* name) {
  struct statx facts = {};
  if (::statx(folder, name, AT_SYMLINK_NOFOLLOW, 0, &facts) != 0) return false;
  return (facts.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

Status check_unprotected(const std::string& folder) {
  struct statx facts = {};
  if (::statx(AT_FDCWD, folder.c_str(), 0, 0, &facts) != 0) {
    return errno == ENOENT ? Status() : system_error(errno, "look at " + folder);
  }
  return (facts.stx_attributes & protected_attributes) != 0 ? is_protected(folder) : Status();
}

Status check_removable(const std::string& path) {
  return check_removable(AT_FDCWD, path, path, 0);
}

std::string identity_of(const struct stat& file) {
  return std::to_string(file.st_size) + ":" + std::to_string(file.st_mtim.tv_sec) + "." +
         std::to_string(file.st_mtim.tv_nsec);
}

Result<Tree> scan(const std::string& path) {
  return Scanner(path).run();
}

Result<Tree> glance(const std::string& path) {
  struct stat status = {};
  if (::lstat(path.c_str(), &status) != 0) return system_error(errno, "look at " + path);
  if (!S_ISREG(status.st_mode)) return scan(path);
  Tree tree;
  tree.inode = status.st_ino;
  tree.size_bytes = static_cast<std::uint64_t>(status.st_size);
  tree.identity = identity_of(status);
  return tree;
}

}  // namespace penstock::tiers
