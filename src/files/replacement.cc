#include "files/replacement.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

#include "base/open_hint.h"
#include "files/attributes.h"
#include "files/durability.h"
#include "files/leftovers.h"

#include "files/device_use.h"
#include "files/file_kind.h"

namespace penstock::files {
namespace {

namespace fs = std::filesystem;

// As many as the kernel follows (path_resolution(7)).
constexpr int max_links = 40;
// Each is lost only to somebody who looked for leftovers in the instant in which the file was not locked yet.
constexpr int max_attempts = 100;

// Whether a link that was read may be followed: as in the kernel where fs.protected_symlinks is set, not that of
// another user in a folder like /tmp, where he can put one for any name. Looked at after it was read: he can't exchange
// it for a link of this user.
Status check_link(const fs::path& link) {
  struct stat folder = {};
  struct stat own = {};
  if (::stat(link.parent_path().c_str(), &folder) != 0)
    return system_error(errno, "open the folder of " + link.string());
  const bool is_anyones = (folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0;
  if (!is_anyones) return {};
  const bool is_there = ::lstat(link.c_str(), &own) == 0;
  if (is_there && (own.st_uid == ::geteuid() || own.st_uid == folder.st_uid)) return {};
  return Error{Code::permission_denied, EACCES,
               link.string() + " is a link of another user, in a folder that every user may write to",
               "name the file that is meant, or remove the link"};
}

// Where a chain of symbolic links ends, whether or not there is a file yet.
Result<fs::path> follow_links(const std::string& name) {
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

// Whether the file that is there now, if any, may be replaced.
Status check_replaceable(int folder, const std::string& target, const std::string& path, struct stat& old) {
  if (::fstatat(folder, target.c_str(), &old, 0) != 0) {
    old = {};
    return errno == ENOENT ? Status() : system_error(errno, "replace " + path);
  }
  if (Status kind = check_kind(old, path, Access::replace); !kind) return kind;
  if (::faccessat(folder, target.c_str(), W_OK, AT_EACCESS) != 0) {
    return system_error(errno, "replace " + path,
                        errno == EROFS ? "the file system is mounted read-only: write elsewhere"
                                       : "this user may not write to the existing file; remove it first");
  }
  return check_unused(old, path, FileChange::replacement);
}

}  // namespace

Result<std::unique_ptr<Replacement>> Replacement::create(const std::string& target) {
  auto path = follow_links(target);
  if (!path) return std::move(path).error();
  std::unique_ptr<Replacement> made(new Replacement);
  made->path_ = path->string();
  made->target_ = path->filename().string();
  if (made->target_.empty() || made->target_ == "." || made->target_ == "..") {
    return Error{Code::is_directory, EISDIR, target + " is a directory", "name a file in it"};
  }
  const std::string folder = path->parent_path().string();
  made->folder_ = UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!made->folder_) {
    const int error = errno;
    return system_error(error, "open the folder " + folder,
                        error == ENOENT ? "create the folder first" : open_hint(error, folder, Access::read));
  }

  struct stat old = {};
  if (Status status = check_replaceable(made->folder_.get(), made->target_, made->path_, old); !status) {
    return std::move(status).error();
  }
  const bool replaces = S_ISREG(old.st_mode);
  const bool numbered = locks_prove(made->folder_.get());
  if (numbered) remove_leftovers_of(made->folder_.get(), made->target_);
  // Until it has the old file's mode, nobody else may open it and read later what is written then.
  if (Status status = made->make_temporary(replaces ? 0600 : 0666, numbered); !status) return std::move(status).error();
  if (replaces) {
    if (Status status = take_attributes(made->locked_.get(), made->path_, old); !status) {
      return std::move(status).error();
    }
  }
  return made;
}

Status Replacement::make_temporary(mode_t mode, bool numbered) {
  std::uint32_t number = numbered ? 0 : numbered_names;
  for (int i = 0; i < max_attempts; ++i) {
    std::string name = number < numbered_names ? numbered_name(target_, number) : random_name(target_);
    UniqueFd fd(::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (!fd && errno == EEXIST) {
      ++number;  // of another writer, or of what can't be removed
      continue;
    }
    if (!fd) {
      return system_error(errno, "create a temporary file beside " + path_,
                          errno == EROFS ? "the file system is mounted read-only: write elsewhere"
                                         : "check that the folder is writable; an existing file can also be "
                                           "written in place");
    }
    const Lock lock = try_lock(fd.get());
    if (lock == Lock::impossible) {
      std::string unlockable = unlockable_name(random_name(target_));
      if (::renameat(folder_.get(), name.c_str(), folder_.get(), unlockable.c_str()) != 0) {
        const int error = errno;
        if (is_name_of(folder_.get(), name, fd.get())) ::unlinkat(folder_.get(), name.c_str(), 0);
        return system_error(error, "rename a temporary file beside " + path_, "check that the folder is writable");
      }
      name = std::move(unlockable);
    }
    // Otherwise somebody takes it for a leftover: it is gone, or will be. The name may be another writer's by then.
    if (lock != Lock::busy && is_name_of(folder_.get(), name, fd.get())) {
      temporary_ = std::move(name);
      locked_ = std::move(fd);
      return {};
    }
  }
  return Error{Code::in_use, 0, "temporary files beside " + path_ + " vanish as soon as they are created",
               "find out what removes them"};
}

// A forked child shares the lock, so closing alone would not give it back.
void Replacement::unlock() {
  if (locked_) ::flock(locked_.get(), LOCK_UN);
  locked_ = UniqueFd();
}

Replacement::~Replacement() {
  // A forked child drops its copy; the file is still its parent's.
  if (::getpid() != process_) return;
  if (state_ == State::unfinished && has_name()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

// Where something else has removed the file, its name may be another writer's by now.
bool Replacement::has_name() const {
  return locked_ && is_name_of(folder_.get(), temporary_, locked_.get());
}

int Replacement::open(int flags) const {
  const int fd = ::openat(folder_.get(), temporary_.c_str(), flags | O_CLOEXEC);
  struct stat opened = {};
  struct stat own = {};
  const bool is_own = fd >= 0 && ::fstat(fd, &opened) == 0 && ::fstat(locked_.get(), &own) == 0 &&
                      opened.st_dev == own.st_dev && opened.st_ino == own.st_ino;
  if (fd < 0 || is_own) return fd;
  ::close(fd);
  errno = ENOENT;
  return -1;
}

// The file is its parent's.
Status Replacement::refuse_in_child(const char* what) const {
  if (::getpid() == process_) return {};
  return Error{Code::closed, 0, std::string(what) + ' ' + path_ + ": it was opened before this process was forked",
               "do that in the process that opened it"};
}

Status Replacement::commit(int fd, bool durable) {
  if (auto status = refuse_in_child("commit"); !status) return status;
  if (state_ == State::aborted) {
    return Error{Code::invalid_argument, 0, "commit " + path_ + ": it was aborted", "open it again"};
  }
  if (durable && ::fsync(fd) != 0) return system_error(errno, "sync " + path_);
  if (state_ != State::committed) {
    const bool is_there = has_name();
    if (!is_there || ::renameat(folder_.get(), temporary_.c_str(), folder_.get(), target_.c_str()) != 0) {
      return system_error(is_there ? errno : ENOENT, "give the new file the name " + path_);
    }
    state_ = State::committed;
    unlock();
  }
  return durable ? sync_folder(folder_.get(), path_) : Status();
}

Status Replacement::abort() {
  if (auto status = refuse_in_child("abort"); !status) return status;
  if (state_ != State::unfinished) return {};
  state_ = State::aborted;
  if (has_name() && ::unlinkat(folder_.get(), temporary_.c_str(), 0) != 0 && errno != ENOENT) {
    return system_error(errno, "remove the unfinished " + temporary_);
  }
  unlock();
  return {};
}

}  // namespace penstock::files
