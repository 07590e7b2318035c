#include "files/replacement.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>

#include "base/link_target.h"
#include "base/open_hint.h"
#include "base/uninterrupted.h"
#include "files/attributes.h"
#include "files/durability.h"
#include "files/leftovers.h"

#include "files/device_use.h"
#include "files/file_kind.h"

namespace penstock::files {
namespace {

// Each is lost only to somebody who looked for leftovers in the instant in which the file was not locked yet.
constexpr int max_attempts = 100;

struct Old {
  UniqueFd file;  // O_PATH; none: there is no file yet
  struct stat status = {};
};

// The file that is there now, if it may be replaced.
Result<Old> old_file(int folder, const std::string& target, const std::string& path) {
  Old old{UniqueFd(::openat(folder, target.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC))};
  if (!old.file && errno == ENOENT) return old;
  struct stat shared = {};
  if (!old.file || ::fstat(old.file.get(), &old.status) != 0 || ::fstat(folder, &shared) != 0) {
    return system_error(errno, "replace " + path);
  }
  if (S_ISLNK(old.status.st_mode)) return system_error(ELOOP, "replace " + path, "name the file that is meant");
  if (Status kind = check_kind(old.status, path, Access::replace); !kind) return std::move(kind).error();
  // It would get the new content, or the attributes and so the owner.
  if (Status own = check_own_in_shared_folder(shared, old.status, path); !own) return std::move(own).error();
  if (::faccessat(folder, target.c_str(), W_OK, AT_EACCESS) != 0) {
    return system_error(errno, "replace " + path,
                        errno == EROFS ? "the file system is mounted read-only: write elsewhere"
                                       : "this user may not write to the existing file; remove it first");
  }
  if (Status unused = check_unused(old.status, path, FileChange::replacement); !unused)
    return std::move(unused).error();
  return old;
}

}  // namespace

Result<std::unique_ptr<Replacement>> Replacement::create(const std::string& target, int folder) {
  std::filesystem::path path = target;
  if (folder < 0) {
    auto end = link_target(target);
    if (!end) return std::move(end).error();
    path = std::move(*end);
  }
  std::unique_ptr<Replacement> made(new Replacement);
  made->path_ = path.string();
  made->target_ = path.filename().string();
  if (made->target_.empty() || made->target_ == "." || made->target_ == "..") {
    return Error{Code::is_directory, EISDIR, target + " is a directory", "name a file in it"};
  }
  const std::string parent = path.parent_path().string();
  made->folder_ = UniqueFd(::openat(folder, folder < 0 ? parent.c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!made->folder_) {
    const int error = errno;
    return system_error(error, "open the folder " + parent,
                        error == ENOENT ? "create the folder first" : open_hint(error, parent, Access::read));
  }

  const auto old = old_file(made->folder_.get(), made->target_, made->path_);
  if (!old) return old.error();
  const bool numbered = locks_prove(made->folder_.get());
  if (numbered) remove_leftovers_of(made->folder_.get(), made->target_);
  // Until it has the old file's mode, nobody else may open it and read later what is written then.
  if (Status status = made->make_temporary(old->file ? 0600 : 0666, numbered); !status) {
    return std::move(status).error();
  }
  if (old->file) {
    const AttributesOf from{old->file.get(), made->path_, old->status};
    if (Status status = take_attributes(made->locked_.get(), from); !status) return std::move(status).error();
  }
  return made;
}

Status Replacement::make_temporary(mode_t mode, bool numbered) {
  std::uint32_t number = numbered ? 0 : numbered_names;
  for (int i = 0; i < max_attempts; ++i) {
    std::string name = number < numbered_names ? numbered_name(target_, number) : random_name(target_);
    constexpr int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    UniqueFd fd(uninterrupted([&] { return ::openat(folder_.get(), name.c_str(), flags, mode); }));
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
  const int fd = uninterrupted([&] { return ::openat(folder_.get(), temporary_.c_str(), flags | O_CLOEXEC); });
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

void Replacement::hold_replaced() {
  // What the next files of that size may need.
  constexpr std::uint64_t times_its_size = 4;
  if (state_ != State::unfinished || ::getpid() != process_) return;
  UniqueFd old(::openat(folder_.get(), target_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat status = {};
  struct statvfs system = {};
  const bool is_known =
      old && ::fstat(old.get(), &status) == 0 && ::fstatvfs(folder_.get(), &system) == 0 && system.f_frsize != 0;
  if (!is_known) return;
  if (system.f_bavail / times_its_size > static_cast<std::uint64_t>(status.st_size) / system.f_frsize) {
    replaced_ = std::move(old);
  }
}

Status Replacement::commit(int fd, bool durable) {
  if (auto status = refuse_in_child("commit"); !status) return status;
  if (state_ == State::aborted) {
    return Error{Code::invalid_argument, 0, "commit " + path_ + ": it was aborted", "open it again"};
  }
  if (durable && uninterrupted([&] { return ::fsync(fd); }) != 0) return system_error(errno, "sync " + path_);
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
