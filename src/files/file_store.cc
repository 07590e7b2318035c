#include "files/file_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "base/clock.h"
#include "base/file_number.h"
#include "base/uninterrupted.h"
#include "base/writers.h"
#include "files/durability.h"
#include "files/residency.h"

namespace penstock::files {
namespace {

constexpr std::size_t max_sample_bytes = 64 << 10;

// Ranges that no file can have, for calls that take signed offsets.
bool addressable(std::uint64_t offset, std::uint64_t length) {
  constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  return offset <= max && length <= max - offset;
}

Error changed(const std::string& name, const std::string& how) {
  return {Code::changed, 0, name + " " + how + " since it was opened", "open it again"};
}

// Found out by what only an owner may do, since the kernel then asks no server, and knows what user namespaces mean.
bool counts_as_owner(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NOATIME) != 0) return false;
  ::fcntl(fd, F_SETFL, flags);
  return true;
}

}  // namespace

FileStore::FileStore(OpenedFile&& file)
    : engine::Store(std::move(file.info)),
      path_(std::move(file.path)),
      number_(file.number),
      buffered_(std::move(file.buffered)),
      is_nonblocking_(file.is_nonblocking),
      direct_(std::move(file.direct)),
      // Of files of others the kernel tells it only to who may write to them, and asks the server about that.
      asks_cachestat_(!is_remote(info_.locality) || info_.writable || counts_as_owner(buffered_fd())),
      checks_path_(info_.kind == StoreKind::file && !file.replacement),
      name_is_new_(file.name_is_new),
      reads_cached_(!is_remote(info_.locality)),
      replacement_(std::move(file.replacement)) {}

// Before anything of the file is read.
void FileStore::find_who_tells_residency() const {
  // Of a server's files, mapping asks the server.
  if (info_.locality != Locality::local || resident_by_cachestat(buffered_fd(), {0, 1})) return;
  mincore_is_honest_ =
      info_.writable || counts_as_owner(buffered_fd()) || ::faccessat(AT_FDCWD, path_.c_str(), W_OK, AT_EACCESS) == 0;
  const bool is_told = mincore_is_honest_ && resident_by_mincore(buffered_fd(), {0, 1});
  // Pages are looked at one by one then (is_resident), and that must not make the kernel read ahead.
  if (!is_told) ::posix_fadvise(buffered_fd(), 0, 0, POSIX_FADV_RANDOM);
}

int FileStore::direct_fd() const {
  direct_once_.run([&] {
    if (info_.direct && !direct_) direct_ = open_direct(buffered_fd(), path_, info_.writable);
  });
  return direct_.get();
}

void FileStore::make_blocking_now() const {
  make_blocking(buffered_fd());
  is_nonblocking_.store(false, std::memory_order_release);
}

std::shared_ptr<const void> FileStore::give_descriptors() {
  return std::make_shared<std::pair<UniqueFd, UniqueFd>>(std::move(buffered_), std::move(direct_));
}

Result<engine::State> FileStore::state() const {
  if (!checks_path_) return state_of(buffered_fd(), info_.name);
  struct stat named = {};
  if (::stat(path_.c_str(), &named) != 0) {
    if (errno == ENOENT || errno == ENOTDIR || errno == ESTALE) return changed(info_.name, "was removed or renamed");
    return system_error(errno, "ask about " + info_.name);
  }
  struct stat own = named;
  // A local file says the same by its name.
  const bool is_same = number_ != 0 && !is_remote(info_.locality) && penstock::file_number(named) == number_;
  if (!is_same && ::fstat(buffered_fd(), &own) != 0) return system_error(errno, "ask about " + info_.name);
  if (named.st_dev != own.st_dev || named.st_ino != own.st_ino) {
    return changed(info_.name, "was replaced by another file");
  }
  return state_of_file(own);
}

void FileStore::await_writers() const {
  if (info_.kind != StoreKind::file || (info_.file_system != "ext4" && info_.file_system != "tmpfs")) return;
  await_write_lock(buffered_fd(), info_.size_bytes);
}

std::optional<std::uint64_t> FileStore::resident_bytes(std::uint64_t offset, std::uint64_t length) const {
  if (info_.locality == Locality::memory) return length;
  if (!asks_cachestat_) return std::nullopt;
  const ByteRange range{offset, length};
  residency_once_.run([&] { find_who_tells_residency(); });
  if (const auto resident = resident_by_cachestat(buffered_fd(), range)) return resident;
  return mincore_is_honest_ ? resident_by_mincore(buffered_fd(), range) : std::nullopt;
}

std::optional<bool> FileStore::is_resident(std::uint64_t offset) const {
  // Even to look into the page cache may ask a server whether it still holds.
  return is_remote(info_.locality) ? std::nullopt : resident_by_reading(buffered_fd(), offset);
}

std::optional<double> FileStore::timed_read_seconds(std::uint64_t offset, std::uint64_t length) const {
  std::array<std::byte, max_sample_bytes> sample{};
  if (!addressable(offset, length)) return std::nullopt;
  const TimePoint begin = Clock::now();
  const std::size_t bytes = std::min<std::uint64_t>(length, sample.size());
  const ssize_t got = ::pread(buffered_fd(), sample.data(), bytes, static_cast<off_t>(offset));
  if (got < 0 || (got == 0 && bytes > 0)) return std::nullopt;
  return seconds_between(begin, Clock::now());
}

std::optional<std::uint64_t> FileStore::read_cached(std::uint64_t offset, std::span<std::byte> memory) {
  if (!reads_cached_.load(std::memory_order_relaxed) || !addressable(offset, memory.size())) return std::nullopt;
  const int flags = info_.locality == Locality::memory ? 0 : RWF_NOWAIT;
  std::uint64_t done = 0;
  while (done < memory.size()) {
    const iovec place{memory.data() + done, memory.size() - done};
    const ssize_t got = ::preadv2(buffered_fd(), &place, 1, static_cast<off_t>(offset + done), flags);
    if (got > 0) {
      done += static_cast<std::uint64_t>(got);
      continue;
    }
    if (got < 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) reads_cached_.store(false, std::memory_order_relaxed);
    break;
  }
  return done;
}

Status FileStore::prefetch(std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return {};  // which fadvise would take for "to the end"
  if (!addressable(offset, length)) {
    return Error{Code::out_of_range, 0, "prefetch past the end of " + info_.name, "ask for less"};
  }
  const int error =
      ::posix_fadvise(buffered_fd(), static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_WILLNEED);
  return error == 0 ? Status() : Status(system_error(error, "prefetch " + info_.name));
}

void FileStore::drop(std::uint64_t offset, std::uint64_t length) {
  if (length == 0 || !addressable(offset, length)) return;
  ::posix_fadvise(buffered_fd(), static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_DONTNEED);
}

Result<View> FileStore::map() const {
  const auto state = state_of(buffered_fd(), info_.name);
  if (!state) return state.error();
  if (state->size_bytes == 0) return View();
  void* data = ::mmap(nullptr, state->size_bytes, PROT_READ, MAP_SHARED, buffered_fd(), 0);
  if (data == MAP_FAILED) return system_error(errno, "map " + info_.name, "read it instead");
  return View(static_cast<const std::byte*>(data), state->size_bytes);
}

engine::Writer::Edges FileStore::edges() const {
  return info_.kind == StoreKind::block_device ? Edges::blocks : Edges::buffered;
}

Status FileStore::reserve(engine::Room room) {
  const std::lock_guard lock(writer_mutex_);
  return reserve_space(buffered_fd(), info_.name, room);
}

Status FileStore::sync_name() {
  const std::lock_guard lock(writer_mutex_);
  return sync_new_name();
}

Status FileStore::sync_new_name() {
  if (!name_is_new_) return {};
  // Removed or renamed since: there is no name to make durable.
  struct stat named = {};
  struct stat own = {};
  if (::stat(path_.c_str(), &named) != 0 || ::fstat(buffered_fd(), &own) != 0 || named.st_dev != own.st_dev ||
      named.st_ino != own.st_ino) {
    name_is_new_ = false;
    return {};
  }
  Status status = sync_folder_of(path_);
  name_is_new_ = !status.ok();
  return status;
}

Status FileStore::commit(bool durable) {
  const std::lock_guard lock(writer_mutex_);
  if (replacement_) {
    if (info_.locality == Locality::local) replacement_->hold_replaced();
    return replacement_->commit(buffered_fd(), durable);
  }
  if (!durable) return {};
  if (uninterrupted([&] { return ::fdatasync(buffered_fd()); }) != 0) return system_error(errno, "sync " + info_.name);
  return sync_new_name();
}

std::shared_ptr<const void> FileStore::take_replaced() {
  const std::lock_guard lock(writer_mutex_);
  UniqueFd replaced = replacement_ ? replacement_->take_replaced() : UniqueFd();
  return replaced ? std::make_shared<const UniqueFd>(std::move(replaced)) : nullptr;
}

Status FileStore::abort() {
  const std::lock_guard lock(writer_mutex_);
  return replacement_ ? replacement_->abort() : Status();
}

}  // namespace penstock::files
