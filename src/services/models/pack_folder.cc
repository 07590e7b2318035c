#include "services/models/pack_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/uninterrupted.h"
#include "services/models/contents.h"
#include "services/models/resolve.h"

namespace penstock::models {

namespace fs = std::filesystem;

namespace {

constexpr const char* unfinished_name = ".penstock-unfinished";

// What would stay in the folder, and make another model of it.
Status check_others(const std::string& folder, std::span<const std::string> sources) {
  std::set<std::string> written;
  for (const std::string& source : sources) written.insert(fs::path(source).filename().string());
  std::vector<std::string> others;
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::string name = at->path().filename().string();
    const bool counts = !name.starts_with('.') && (name.ends_with(".safetensors") || name.ends_with(index_ending));
    if (counts && !written.contains(name)) others.push_back(name);
  }
  if (failed == std::errc::not_a_directory) {
    return Error{code_from_errno(ENOTDIR), ENOTDIR, folder + " is not a folder",
                 "name a folder: each file of the model is written into it"};
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    return system_error(failed.value(), "list " + folder, "check the path and its permissions");
  }
  if (others.empty()) return {};
  std::ranges::sort(others);
  return Error{Code::invalid_argument, 0,
               folder + " has files that are not of this model and would be taken for a part of it: " + list_of(others),
               "name an empty folder, or remove these files"};
}

}  // namespace

Result<SourceFolder> SourceFolder::open(const std::string& path) {
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return system_error(errno, "open the folder " + path, "check the path and its permissions");
  return SourceFolder(std::move(folder), path);
}

Result<std::vector<std::string>> SourceFolder::names() const {
  const int again = ::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(again < 0 ? nullptr : ::fdopendir(again), ::closedir);
  if (!stream) return system_error(errno, "list " + path_, "check the path and its permissions");
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    names.emplace_back(entry->d_name);
  }
  if (errno != 0) return system_error(errno, "list " + path_, "check the path and its permissions");
  std::ranges::sort(names);
  return names;
}

std::optional<std::uint64_t> SourceFolder::file_bytes(const std::string& name) const {
  struct stat status = {};
  if (::fstatat(folder_.get(), name.c_str(), &status, 0) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(status.st_size);
}

Status SourceFolder::check_copied(const std::string& name, const Identity& identity) const {
  const std::string path = (fs::path(path_) / name).string();
  struct stat entry = {}, meant = {};
  const bool is_there = ::fstatat(folder_.get(), name.c_str(), &entry, AT_SYMLINK_NOFOLLOW) == 0;
  const UniqueFd file(::openat(folder_.get(), name.c_str(), O_PATH | O_CLOEXEC));
  if (!is_there || !file || ::fstat(file.get(), &meant) != 0) return system_error(errno, "open " + path);
  const auto found = Identity::of_file(file.get());
  if (!found) return found.error();
  const bool is_link = S_ISLNK(entry.st_mode);
  const bool is_same = is_link || (entry.st_dev == meant.st_dev && entry.st_ino == meant.st_ino);
  if (*found != identity || !is_same) {
    return Error{Code::changed, 0, path + " was replaced while the model was copied", "start again"};
  }
  const uid_t own = ::geteuid();
  const bool is_trusted = !is_link || entry.st_uid == own || entry.st_uid == 0 || entry.st_uid == meant.st_uid;
  const bool is_for_all = meant.st_uid != own && (meant.st_mode & S_IROTH) != 0;
  if (is_trusted || is_for_all) return {};
  return Error{Code::permission_denied, 0,
               path + " is a link of user " + std::to_string(entry.st_uid) + " to a file that is not that user's",
               "name the file itself, or make the link yours: chown -h " + std::to_string(own) + " " + path};
}

std::string target_in(const std::string& folder, const std::string& source) {
  return (fs::path(folder) / fs::path(source).filename()).string();
}

Status check_targets(const std::string& folder, std::span<const std::string> sources) {
  std::set<std::pair<dev_t, ino_t>> own;
  struct stat status = {};
  for (const std::string& source : sources) {
    if (::stat(source.c_str(), &status) == 0) own.emplace(status.st_dev, status.st_ino);
  }
  for (const std::string& source : sources) {
    const std::string target = target_in(folder, source);
    if (::stat(target.c_str(), &status) == 0 && own.contains({status.st_dev, status.st_ino})) {
      return Error{Code::invalid_argument, 0, target + " is a file of the model itself, or a link to one",
                   "name another folder"};
    }
    if (::lstat(target.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
      return Error{Code::invalid_argument, 0, target + " is a symbolic link, and links are not written through",
                   "remove the link, or name another folder"};
    }
  }
  return check_others(folder, sources);
}

Status check_finished(const std::string& folder) {
  struct stat status = {};
  if (::lstat((fs::path(folder) / unfinished_name).c_str(), &status) != 0) return {};
  return Error{Code::invalid_argument, 0,
               folder + " is no complete model: packing or unpacking into it has not ended, as " + unfinished_name +
                   " in it says",
               "if that does not run any more, do it again or remove the folder"};
}

Result<std::unique_ptr<Unfinished>> Unfinished::begin(const std::string& folder, bool durable) {
  std::unique_ptr<Unfinished> made(new Unfinished(folder, durable));
  made->folder_ = UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!made->folder_) return system_error(errno, "open the folder " + folder, "check its permissions");
  for (;;) {
    if (Status status = made->open_marker(); !status) return std::move(status).error();
    const Result<bool> locked = made->lock();
    if (!locked) return locked.error();
    if (*locked) break;
  }
  if (Status status = made->sync(); !status) {
    made->withdraw();
    return std::move(status).error();
  }
  return made;
}

Status Unfinished::open_marker() {
  constexpr int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  // Only who may write into the folder may lock it.
  struct stat folder = {};
  if (::fstat(folder_.get(), &folder) != 0) return system_error(errno, "look at " + path_);
  const mode_t writers = folder.st_mode & 0222;
  for (;;) {
    marker_ =
        UniqueFd(::openat(folder_.get(), unfinished_name, flags | O_CREAT | O_EXCL, 0600 | writers | writers << 1));
    is_new_ = static_cast<bool>(marker_);
    if (!marker_ && errno == EEXIST) {
      marker_ = UniqueFd(::openat(folder_.get(), unfinished_name, flags));
      if (!marker_ && errno == ENOENT) continue;
    }
    if (marker_) return {};
    return system_error(errno, "open " + (fs::path(path_) / unfinished_name).string(),
                        "check that the folder is writable");
  }
}

// False: whoever had it has ended, and removed it meanwhile.
Result<bool> Unfinished::lock() {
  if (uninterrupted([&] { return ::flock(marker_.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK) {
      return Error{Code::in_use, 0, "a model is being packed or unpacked into " + path_,
                   "wait for that to end, or name another folder"};
    }
    if (is_new_) return true;
    return Error{Code::in_use, 0,
                 path_ + " is unfinished, and its file system has no locks that tell whether that runs",
                 std::string("if it does not, remove ") + unfinished_name + " there"};
  }
  struct stat named = {}, open = {};
  return ::fstatat(folder_.get(), unfinished_name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(marker_.get(), &open) == 0 && named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

// A forked child shares the lock, so closing alone would not give it back.
Unfinished::~Unfinished() {
  if (marker_) ::flock(marker_.get(), LOCK_UN);
}

Status Unfinished::end() {
  if (::unlinkat(folder_.get(), unfinished_name, 0) == 0 || errno == ENOENT) return sync();
  return system_error(errno, "remove " + (fs::path(path_) / unfinished_name).string(),
                      "all files are there: remove it by hand");
}

void Unfinished::withdraw() {
  if (is_new_) ::unlinkat(folder_.get(), unfinished_name, 0);
}

Status Unfinished::sync() const {
  // EINVAL: this file system has nothing to sync for a folder.
  if (!durable_ || uninterrupted([&] { return ::fsync(folder_.get()); }) == 0 || errno == EINVAL) return {};
  return system_error(errno, "sync the folder " + path_, "look into the kernel log");
}

}  // namespace penstock::models
