#include "services/kinds/dictionary_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/held_folder.h"
#include "base/link_target.h"
#include "base/open_hint.h"

namespace penstock::kinds {
namespace {

constexpr auto between_tries = std::chrono::milliseconds(1);

Error in_dictionary(const std::string& path, Error error) {
  error.message = path + ": " + error.message;
  return error;
}

// Nothing: someone else has it.
Result<bool> try_lock(int fd, const std::string& path) {
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK || errno == EINTR) return false;
  return system_error(errno, "lock " + path, "keep the dictionary on a file system that has locks");
}

// Who has the lock, as far as this machine can tell.
std::string holder_of(int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return {};
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    // "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF" (proc_locks(5)); those that wait have "->" behind the number.
    std::istringstream words(line);
    std::string number, kind, mode, access, file;
    long pid = 0;
    words >> number >> kind >> mode >> access >> pid >> file;
    if (kind != "FLOCK" || !file.ends_with(":" + std::to_string(status.st_ino)) || pid <= 0) continue;
    struct stat process = {};
    if (::stat(("/proc/" + std::to_string(pid)).c_str(), &process) != 0) continue;
    return "process " + std::to_string(pid) + " of user " + std::to_string(process.st_uid);
  }
  return {};
}

}  // namespace

Result<std::string> absolute_path(const std::string& path) {
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(path, failed);
  if (failed) return system_error(failed.value(), "find " + path);
  return absolute.string();
}

Result<Dictionary> read_dictionary(const Context& context, const std::string& path) {
  // Another writer may replace it meanwhile; this one stays as it is.
  auto store = context.open(path, {.growing = true});
  if (!store) return std::move(store).error();
  const std::uint64_t size_bytes = store->info().size_bytes;
  if (store->info().kind != StoreKind::file || size_bytes > dictionary_bytes_most) {
    return Error{Code::invalid_argument, 0, path + " is no dictionary: it is not a file of at most 64 MiB",
                 "give the path of the dictionary"};
  }
  std::string text(size_bytes, '\0');
  if (size_bytes != 0) {
    // Into a Buffer, which outlives a request that is abandoned.
    auto memory = context.allocate(Domain::host(), size_bytes);
    if (!memory) return std::move(memory).error();
    const Report report = context.read(*store, 0, memory->region());
    if (!report.ok()) return *report.error;
    std::memcpy(text.data(), memory->data(), size_bytes);
  }
  auto dictionary = parse(text);
  if (!dictionary) return in_dictionary(path, std::move(dictionary).error());
  return dictionary;
}

Result<Store> write_dictionary(const Context& context, const std::string& path, const Dictionary& dictionary) {
  const auto text = to_text(dictionary);
  if (!text) return in_dictionary(path, text.error());
  auto memory = context.allocate(Domain::host(), text->size());
  if (!memory) return std::move(memory).error();
  std::memcpy(memory->data(), text->data(), text->size());
  auto store = context.open(path, {.access = Access::replace, .size_bytes = text->size()});
  if (!store) return std::move(store).error();
  const Report report = context.write(*store, 0, memory->region());
  if (!report.ok()) return *report.error;
  return store;
}

Result<WriterLock::Place> WriterLock::place_of(const std::string& path) {
  const auto target = link_target(path);
  if (!target) return target.error();
  const std::string folder = target->parent_path().string();
  Place place{target->string(), UniqueFd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
              target->filename().string()};
  if (place.folder) return place;
  const int error = errno;
  return system_error(error, "open the folder " + folder, open_hint(error, folder, Access::create));
}

// Code::not_found: there is no dictionary, and it has to be there.
Status WriterLock::open(bool is_new) {
  const int folder = place_.folder.get();
  struct stat dictionary = {};
  const bool is_there = ::fstatat(folder, place_.name.c_str(), &dictionary, AT_SYMLINK_NOFOLLOW) == 0;
  if (!is_there && (!is_new || errno != ENOENT)) {
    return system_error(errno, "open " + place_.dictionary, open_hint(errno, place_.dictionary, Access::write));
  }
  constexpr int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
  const std::string name = this->name();
  int opened = -1;
  do {
    opened = ::openat(folder, name.c_str(), flags);
    is_made_ = opened < 0 && errno == ENOENT;
    if (is_made_) opened = ::openat(folder, name.c_str(), flags | O_CREAT | O_EXCL, 0600);
  } while (opened < 0 && (errno == EEXIST || errno == EINTR));
  if (const int error = errno; opened < 0) {
    return system_error(error, "open " + path(), open_hint(error, path(), Access::create));
  }
  fd_ = UniqueFd(opened);
  if (is_made_) {
    if (is_there) share_with_writers_of(dictionary);
    return {};
  }
  struct stat own = {};
  struct stat around = {};
  if (::fstat(fd_.get(), &own) != 0 || ::fstat(folder, &around) != 0) return system_error(errno, "look at " + path());
  if (!S_ISREG(own.st_mode) || own.st_nlink > 1) {
    return Error{Code::permission_denied, 0, path() + " is no file that only the writers of a dictionary lock",
                 "look at it, and remove it"};
  }
  if (is_there && own.st_uid == dictionary.st_uid) return {};
  return check_own_in_shared_folder(around, own, path());
}

bool WriterLock::has_name() const {
  struct stat held = {};
  struct stat named = {};
  return ::fstat(fd_.get(), &held) == 0 &&
         ::fstatat(place_.folder.get(), name().c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && is_same_file(held, named);
}

Result<WriterLock> WriterLock::lock(const std::string& path, bool is_new, TimePoint deadline, rows::Watch* watch) {
  auto place = place_of(path);
  if (!place) return std::move(place).error();
  WriterLock made(std::move(*place));
  while (true) {
    if (Status opened = made.open(is_new); !opened) return std::move(opened).error();
    bool is_named = true;
    while (is_named) {
      const auto locked = try_lock(made.fd_.get(), made.path());
      if (!locked) return locked.error();
      is_named = made.has_name();
      if (*locked && is_named) return made;
      if (Clock::now() >= deadline) {
        const std::string holder = holder_of(made.fd_.get());
        return Error{
            Code::in_use, 0,
            path + ": another writer is at work on it" + (holder.empty() ? "" : ": " + holder + " has its lock"),
            "try again, or wait for longer"};
      }
      if (watch != nullptr && !watch->goes_on()) return rows::Watch::told_to_stop();
      if (is_named) std::this_thread::sleep_for(between_tries);
    }
  }
}

Result<WriterLock> WriterLock::of_dictionary(const std::string& path, TimePoint deadline, rows::Watch* watch) {
  return lock(path, false, deadline, watch);
}

Result<WriterLock> WriterLock::of_new_dictionary(const std::string& path, TimePoint deadline) {
  return lock(path, true, deadline, nullptr);
}

// As far as this user may. A member of a group that can't be given must not write by what another group may.
void WriterLock::share_with_writers_of(const struct stat& dictionary) const {
  const uid_t owner = ::geteuid() == 0 ? dictionary.st_uid : static_cast<uid_t>(-1);
  const bool has_group = ::fchown(fd_.get(), owner, dictionary.st_gid) == 0;
  const mode_t writers = dictionary.st_mode & (has_group ? 0222 : 0202);
  static_cast<void>(::fchmod(fd_.get(), 0600 | writers | writers << 1));
}

void WriterLock::share() const {
  struct stat dictionary = {};
  if (is_made_ && ::fstatat(place_.folder.get(), place_.name.c_str(), &dictionary, AT_SYMLINK_NOFOLLOW) == 0) {
    share_with_writers_of(dictionary);
  }
}

void WriterLock::withdraw() const {
  if (is_made_ && has_name()) ::unlinkat(place_.folder.get(), name().c_str(), 0);
}

void WriterLock::release() {
  if (fd_ && ::getpid() == process_) ::flock(fd_.get(), LOCK_UN);
  fd_ = UniqueFd();
}

}  // namespace penstock::kinds
