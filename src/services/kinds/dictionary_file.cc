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

// Who has the lock, as far as this machine can tell. Any user who may read the dictionary can hold it.
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

bool is_same_file(int fd, const std::string& path) {
  struct stat held {
  }, named{};
  return ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &named) == 0 && held.st_dev == named.st_dev &&
         held.st_ino == named.st_ino;
}

Result<UniqueFd> lock(const std::string& path, int flags, Access access, TimePoint deadline,
                      rows::Watch* watch = nullptr) {
  while (true) {
    UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK));
    if (const int error = errno; !fd) return system_error(error, "open " + path, open_hint(error, path, access));
    while (true) {
      const auto locked = try_lock(fd.get(), path);
      if (!locked) return locked.error();
      if (*locked && is_same_file(fd.get(), path)) return fd;
      if (Clock::now() >= deadline) {
        const std::string holder = holder_of(fd.get());
        return Error{
            Code::in_use, 0,
            path + ": another writer is at work on it" + (holder.empty() ? "" : ": " + holder + " has its lock"),
            "try again, or wait for longer; a process that only reads can have the lock too: forbid others to "
            "read the dictionary (chmod o-r) where they are not trusted"};
      }
      if (watch != nullptr && !watch->goes_on()) return rows::Watch::told_to_stop();
      if (*locked) break;  // replaced meanwhile
      std::this_thread::sleep_for(between_tries);
      if (!is_same_file(fd.get(), path)) break;
    }
  }
}

}  // namespace

Result<std::string> absolute_path(const std::string& path) {
  std::error_code failed;
  const auto absolute = std::filesystem::absolute(path, failed);
  if (failed) return system_error(failed.value(), "find " + path);
  return absolute.string();
}

Result<Dictionary> read_dictionary(Context& context, const std::string& path) {
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

Result<Store> write_dictionary(Context& context, const std::string& path, const Dictionary& dictionary) {
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

void WriterLock::release() {
  if (fd_ && ::getpid() == process_) ::flock(fd_.get(), LOCK_UN);
  fd_ = UniqueFd();
}

Result<WriterLock> WriterLock::of_dictionary(const std::string& path, TimePoint deadline, rows::Watch* watch) {
  auto fd = lock(path, O_RDWR, Access::write, deadline, watch);
  if (!fd) return std::move(fd).error();
  return WriterLock(std::move(*fd));
}

Result<WriterLock> WriterLock::of_folder_of(const std::string& path, TimePoint deadline) {
  auto fd = lock(std::filesystem::path(path).parent_path().string(), O_RDONLY | O_DIRECTORY, Access::create, deadline);
  if (!fd) return std::move(fd).error();
  return WriterLock(std::move(*fd));
}

}  // namespace penstock::kinds
