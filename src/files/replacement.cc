#include "files/replacement.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>

#include "files/device_use.h"
#include "files/file_kind.h"

namespace penstock::files {
namespace {

namespace fs = std::filesystem;

// As many as the kernel follows (path_resolution(7)).
constexpr int max_links = 40;
// Names may have 255 bytes; the rest of a temporary name needs 22.
constexpr std::size_t max_borrowed_name_bytes = 200;

// Where a chain of symbolic links ends, whether or not there is a file yet.
Result<fs::path> follow_links(const std::string& name) {
  std::error_code error;
  fs::path path = fs::absolute(name, error);
  for (int links = 0; links < max_links; ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) return path;
    path = path.parent_path() / next;
  }
  return system_error(ELOOP, "replace " + name);
}

std::string temporary_name(const std::string& target) {
  std::random_device random;
  std::array<char, 24> suffix{};
  std::snprintf(suffix.data(), suffix.size(), ".%08x%08x.part", random(), random());
  return "." + target.substr(0, max_borrowed_name_bytes) + suffix.data();
}

// Whether the file that is there now, if any, may be replaced.
Status check_replaceable(int folder, const std::string& target, const std::string& path, struct stat& old) {
  if (::fstatat(folder, target.c_str(), &old, 0) != 0) {
    old = {};
    return errno == ENOENT ? Status() : system_error(errno, "replace " + path);
  }
  if (Status kind = check_kind(old, path, Access::replace); !kind) return kind;
  if (::faccessat(folder, target.c_str(), W_OK, AT_EACCESS) != 0) {
    return system_error(errno, "replace " + path, "this user may not write to the file that is there; remove it first");
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
  if (!made->folder_) return system_error(errno, "open the folder " + folder, "make the folder first");

  struct stat old = {};
  if (Status status = check_replaceable(made->folder_.get(), made->target_, made->path_, old); !status) {
    return std::move(status).error();
  }
  std::string temporary = temporary_name(made->target_);
  // Until it has the old file's mode, nobody else may open it and read later what is written then.
  const mode_t mode = S_ISREG(old.st_mode) ? 0600 : 0666;
  const UniqueFd fd(::openat(made->folder_.get(), temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return system_error(errno, "make a temporary file in " + folder, "check that the folder can be written to");
  made->temporary_ = std::move(temporary);
  if (S_ISREG(old.st_mode)) {
    // Only root can give a file away; for everybody else the owner is right already or can't be kept.
    [[maybe_unused]] const int given = ::fchown(fd.get(), old.st_uid, old.st_gid);
    if (::fchmod(fd.get(), old.st_mode & 0777) != 0) return system_error(errno, "set the mode of " + made->temporary_);
  }
  return made;
}

Replacement::~Replacement() {
  // A forked child drops its copy; the file is still its parent's.
  if (::getpid() != process_) return;
  if (state_ == State::unfinished && !temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
}

int Replacement::open(int flags) const {
  return ::openat(folder_.get(), temporary_.c_str(), flags | O_CLOEXEC);
}

Status Replacement::commit(int fd, bool durable) {
  if (state_ == State::aborted) {
    return Error{Code::invalid_argument, 0, "commit " + path_ + ": it was aborted", "open it again"};
  }
  if (durable && ::fsync(fd) != 0) return system_error(errno, "sync " + path_);
  if (state_ == State::committed) return {};
  if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), target_.c_str()) != 0) {
    return system_error(errno, "give the new file the name " + path_);
  }
  state_ = State::committed;
  if (durable && ::fsync(folder_.get()) != 0) return system_error(errno, "sync the folder of " + path_);
  return {};
}

Status Replacement::abort() {
  if (state_ != State::unfinished) return {};
  state_ = State::aborted;
  if (::unlinkat(folder_.get(), temporary_.c_str(), 0) != 0 && errno != ENOENT) {
    return system_error(errno, "remove the unfinished " + temporary_);
  }
  return {};
}

}  // namespace penstock::files
