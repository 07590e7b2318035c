#include "files/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <span>

#include "base/unique_fd.h"
#include "files/mount.h"
#include "penstock/checksum.h"
#include "penstock/leftovers.h"

namespace penstock::files {
namespace {

constexpr std::string_view ending = ".part";
constexpr std::string_view unlockable_ending = ".nolock.part";
constexpr std::size_t digits = 16;
// Names may have 255 bytes; the rest of a temporary name needs 30.
constexpr std::size_t max_borrowed_name_bytes = 200;

std::string borrowed_name(const std::string& target) {
  return "." + target.substr(0, max_borrowed_name_bytes) + ".";
}

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// ".NAME.0123456789abcdef" with NAME of at least a byte.
bool is_stem(std::string_view text) {
  if (text.size() < digits + 3 || text.front() != '.') return false;
  const std::string_view number = text.substr(text.size() - digits);
  return text[text.size() - digits - 1] == '.' && is_hexadecimal(number);
}

bool is_unlockable_name(std::string_view name) {
  return name.ends_with(unlockable_ending) && is_stem(name.substr(0, name.size() - unlockable_ending.size()));
}

FileSystem file_system_of(int fd) {
  struct statfs system = {};
  if (::fstatfs(fd, &system) != 0) return {"unknown", Locality::network};
  return file_system_from_magic(static_cast<std::uint32_t>(system.f_type));
}

// Whether a lock that can be had in this folder is had by nobody else, on other machines either. Some network and FUSE
// mounts answer for this machine alone; of those that may, only NFS says so. One that we don't know may be of either
// kind.
bool locks_prove(int folder, const FileSystem& file_system) {
  if (file_system.name == "nfs") {
    const auto mount = mount_of(folder);
    return mount && mount_option(*mount, "local_lock") == "none";
  }
  return !is_remote(file_system.locality) && !file_system.generated && !file_system.name.starts_with("0x");
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

struct Entries {
  std::vector<std::string> files;
  std::vector<std::string> folders;
};

// Files whose name is wanted, and if `folders`, all that may be folders.
template <typename Wanted>
Result<Entries> list(int folder, bool folders, const Wanted& wanted) {
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return system_error(errno, "list");
  const std::unique_ptr<DIR, CloseFolder> stream(::fdopendir(own));
  if (!stream) {
    const int error = errno;
    ::close(own);
    return system_error(error, "list");
  }
  Entries entries;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (wanted(name)) {
      entries.files.emplace_back(name);
    } else if (folders && (entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN) && name != "." && name != "..") {
      entries.folders.emplace_back(name);
    }
  }
  if (errno != 0) return system_error(errno, "list");
  std::ranges::sort(entries.files);
  std::ranges::sort(entries.folders);
  return entries;
}

// NFS gives an exclusive lock only to who may write. Elsewhere opening for that could change something: overlayfs
// copies the file.
UniqueFd open_to_lock(int folder, const std::string& name, bool is_nfs) {
  constexpr int flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  if (is_nfs) {
    if (UniqueFd fd(::openat(folder, name.c_str(), O_RDWR | flags)); fd) return fd;
  }
  return UniqueFd(::openat(folder, name.c_str(), O_RDONLY | flags));
}

// Where this machine is an NFS server, locks of its clients arrive as locks of ranges, which flock does not see.
bool is_locked_by_a_client(int fd) {
  struct flock any = {};
  any.l_type = F_WRLCK;
  any.l_whence = SEEK_SET;
  return ::fcntl(fd, F_OFD_GETLK, &any) == 0 && any.l_type != F_UNLCK;
}

// What became of one that has such a name; nothing if it is no leftover, or gone meanwhile.
std::optional<Leftover> remove(int folder, const std::string& name, bool really = true) {
  struct stat status = {};
  if (::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) return {};
  Leftover leftover{.path = name, .bytes = static_cast<std::uint64_t>(status.st_blocks) * 512};
  const bool is_nfs = file_system_of(folder).name == "nfs";
  const UniqueFd fd = open_to_lock(folder, name, is_nfs);
  if (!fd) {
    if (errno == ENOENT) return {};
    leftover.kept = system_error(errno, "open " + name, "run as the user who wrote it, or as root");
    return leftover;
  }
  const Lock lock = try_lock(fd.get());
  switch (lock == Lock::held && !is_nfs && is_locked_by_a_client(fd.get()) ? Lock::busy : lock) {
    case Lock::busy:
      leftover.kept = Error{Code::in_use, 0, "it is being written", ""};
      return leftover;
    case Lock::impossible:
      leftover.kept = Error{Code::unsupported, 0, "its file system has no locks, so its writer may still run",
                            "remove it by hand if no program writes it"};
      return leftover;
    case Lock::held:
      break;
  }
  // Its writer may have given it its final name, or another have removed it, before the lock was ours. From here on
  // nobody else touches the name.
  if (!is_name_of(folder, name, fd.get())) return {};
  if (really && ::unlinkat(folder, name.c_str(), 0) != 0) {
    leftover.kept = system_error(errno, "remove " + name, "run as a user who may write to the folder");
  }
  return leftover;
}

// One `remove_leftovers`.
class Cleaning {
 public:
  explicit Cleaning(const CleanOptions& options) : options_(options) {}

  // Stays on the file system of the folder: below others, locks may mean something else.
  Status clean(int folder, const std::string& path) {
    if (struct stat own = {}; depth_ == 0 && ::fstat(folder, &own) == 0) device_ = own.st_dev;
    const auto wanted = [](std::string_view name) { return is_temporary_name(name) || is_unlockable_name(name); };
    const auto entries = list(folder, options_.recursive, wanted);
    if (!entries) {
      add_failed(path, entries.error().system_error);
      return {};
    }
    const std::optional<Error> doubt = doubt_about_locks(folder);
    for (const std::string& name : entries->files) {
      if (stopped()) return cancelled();
      const std::optional<Error>& reason = is_unlockable_name(name) ? unlockable_ : doubt;
      std::optional<Leftover> found = remove(folder, name, !options_.dry_run && !reason);
      if (!found) continue;
      if (!found->kept) found->kept = reason;
      found->path = path + "/" + name;
      found_.push_back(std::move(*found));
    }
    for (const std::string& name : entries->folders) {
      if (stopped()) return cancelled();
      if (Status status = clean_below(folder, name, path + "/" + name); !status) return status;
    }
    return {};
  }

  std::vector<Leftover> take() { return std::move(found_); }

 private:
  std::optional<Error> doubt_about_locks(int folder) const {
    const FileSystem file_system = file_system_of(folder);
    if (options_.remote || locks_prove(folder, file_system)) return std::nullopt;
    return Error{Code::unsupported, 0,
                 "other machines may not see the locks of " + file_system.name + ", and its writer may run on one",
                 "if no other machine writes there, allow it with --remote"};
  }

  Status clean_below(int folder, const std::string& name, const std::string& path) {
    const UniqueFd below(::openat(folder, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!below) {
      if (errno != ENOTDIR && errno != ELOOP && errno != ENOENT) add_failed(path, errno);
      return {};
    }
    struct stat status = {};
    if (::fstat(below.get(), &status) != 0 || status.st_dev != device_) return {};
    if (depth_ == most_depth) {
      found_.push_back(
          {path, 0, Error{Code::unsupported, 0, "the folder is nested too deeply", "clean it separately"}});
      return {};
    }
    ++depth_;
    Status cleaned = clean(below.get(), path);
    --depth_;
    return cleaned;
  }

  void add_failed(const std::string& path, int error) {
    const bool out_of_descriptors = error == EMFILE || error == ENFILE;
    found_.push_back({path, 0,
                      system_error(error, "list " + path,
                                   out_of_descriptors ? "raise the limit of open files (ulimit -n)"
                                                      : "run as a user who may read the folder")});
  }

  bool stopped() const { return options_.keep_going && !options_.keep_going(); }
  static Error cancelled() { return {Code::cancelled, 0, "stopped before every folder was checked", ""}; }

  static constexpr int most_depth = 256;  // each has a descriptor

  const CleanOptions& options_;
  dev_t device_ = 0;
  int depth_ = 0;  // below the folder that was named
  const std::optional<Error> unlockable_ =
      Error{Code::unsupported, 0, "it could not be locked when it was created, so its writer may still run",
            "remove it by hand if no program writes it"};
  std::vector<Leftover> found_;
};

}  // namespace

std::string random_name(const std::string& target) {
  std::random_device random;
  std::array<char, digits + 1> number{};
  std::snprintf(number.data(), number.size(), "%08x%08x", random(), random());
  return borrowed_name(target) + number.data() + std::string(ending);
}

std::string numbered_name(const std::string& target, std::uint32_t number) {
  constexpr std::string_view hexadecimal = "0123456789abcdef";
  Checksum checksum;  // of the whole name: a long one is cut
  checksum.add(std::as_bytes(std::span(target)));
  std::string text = checksum.hex();
  text[digits - 2] = hexadecimal[number / hexadecimal.size() % hexadecimal.size()];
  text[digits - 1] = hexadecimal[number % hexadecimal.size()];
  return borrowed_name(target) + text + std::string(ending);
}

std::string unlockable_name(const std::string& temporary) {
  return temporary.substr(0, temporary.size() - ending.size()) + std::string(unlockable_ending);
}

bool is_temporary_name(std::string_view name) {
  return name.ends_with(ending) && is_stem(name.substr(0, name.size() - ending.size()));
}

Lock try_lock(int fd) {
  for (;;) {
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return Lock::held;
    if (errno == EWOULDBLOCK) return Lock::busy;
    if (errno != EINTR) return Lock::impossible;
  }
}

bool is_name_of(int folder, const std::string& name, int fd) {
  struct stat named = {};
  struct stat open = {};
  return ::fstatat(folder, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(fd, &open) == 0 &&
         named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

bool locks_prove(int folder) {
  return locks_prove(folder, file_system_of(folder));
}

void remove_leftovers_of(int folder, const std::string& target) {
  for (std::uint32_t number = 0; number < numbered_names; ++number) {
    static_cast<void>(remove(folder, numbered_name(target, number)));
  }
}

}  // namespace penstock::files

namespace penstock {

Result<std::vector<Leftover>> remove_leftovers(const std::string& folder, const CleanOptions& options) {
  const UniqueFd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) {
    if (errno != ENOTDIR) return system_error(errno, "open the folder " + folder, "check the name");
    return Error{Code::invalid_argument, ENOTDIR, folder + " is not a folder", "name the folder that contains it"};
  }
  files::Cleaning cleaning(options);
  const std::string path = folder.size() > 1 && folder.ends_with('/') ? folder.substr(0, folder.size() - 1) : folder;
  const Status status = cleaning.clean(opened.get(), path);
  std::vector<Leftover> found = cleaning.take();
  if (!status) found.push_back({path, 0, status.error()});
  return found;
}

}  // namespace penstock
