#include "files/open.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <limits>

#include "base/file_number.h"
#include "base/link_target.h"
#include "base/open_hint.h"
#include "base/uninterrupted.h"
#include "files/by_mount.h"
#include "files/device_use.h"
#include "files/durability.h"
#include "files/file_kind.h"
#include "files/file_status.h"
#include "files/leftovers.h"
#include "files/may_wait.h"

namespace penstock::files {
namespace {

constexpr std::uint32_t direct_alignment_bytes = 4096;
constexpr std::uint32_t sector_bytes = 512;
constexpr int max_interruptions = 1000;
// Each operation on a network or FUSE mount costs a thread its whole latency, so it should be worth it.
constexpr std::uint32_t remote_operation_bytes = 4 << 20;

Error open_error(int error, const std::string& name, Access access) {
  return system_error(error, "open " + name, open_hint(error, name, access));
}

Status check_block_device_access(const struct stat& status, const std::string& name, const OpenOptions& options) {
  if (options.access == Access::read) return {};
  if (!options.allow_block_device_write) {
    return Error{Code::read_only, 0, name + " is a block device, and writing destroys its data",
                 "if you mean it, allow it explicitly: allow_block_device_write in C++, device_write=True in Python"};
  }
  const DeviceNumber device = device_number(status.st_rdev);
  if (Status unused = check_unused(device, name); !unused) return unused;
  if (!is_read_only(device)) return {};
  return Error{Code::read_only, EROFS, name + " is read-only",
               "to allow writing: blockdev --setrw " + name +
                   "; detach a loop device that was set up with losetup --read-only, and set it up again without"};
}

// Reading is free: what uses the file sees nothing of it.
Status check_file_unused(const struct stat& status, const std::string& name, Access access) {
  if (access == Access::read) return {};
  return S_ISREG(status.st_mode) ? check_unused(status, name, FileChange::in_place) : Status();
}

int access_flags(Access access) {
  return access == Access::read ? O_RDONLY : O_RDWR;
}

std::uint32_t power_of_two_or_zero(std::uint64_t value) {
  return std::has_single_bit(value) && value <= std::numeric_limits<std::uint32_t>::max()
             ? static_cast<std::uint32_t>(value)
             : 0;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

bool is_file(int fd, const struct stat& file) {
  struct stat status = {};
  return ::fstat(fd, &status) == 0 && same_file(status, file);
}

DeviceNumber device_of(const struct stat& status) {
  return device_number(S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev);
}

Alignments direct_alignments(const FileStatus& status, std::uint32_t block_bytes, const DiskFacts& disk) {
  const DirectSupport support = status.direct.value_or(DirectSupport());
  const std::uint32_t block = std::max(block_bytes, power_of_two_or_zero(disk.block_bytes));
  const std::uint32_t memory = power_of_two_or_zero(support.memory_alignment);
  const std::uint32_t optimal = power_of_two_or_zero(disk.optimal_bytes);
  return {
      .offset = std::max({direct_alignment_bytes, power_of_two_or_zero(support.offset_alignment), block}),
      .memory = memory != 0 ? memory : std::max(sector_bytes, block),
      .optimal = optimal != 0 ? optimal : power_of_two_or_zero(static_cast<std::uint64_t>(status.basic.st_blksize))};
}

// Of a file that calls itself empty.
bool has_bytes(int fd) {
  char byte = 0;
  struct stat status = {};
  // It may have grown meanwhile.
  return ::pread(fd, &byte, 1, 0) > 0 && ::fstat(fd, &status) == 0 && status.st_size == 0;
}

// A size that is not the length would make a copy that is too short or too long, and pass for whole.
Status check_length(int fd, const std::string& name, const FileSystem& file_system, bool seems_empty) {
  const std::string hint = "copy it to a file first: cat " + name + " > FILE";
  if (file_system.generated) {
    return Error{Code::unsupported, 0,
                 name + " is on " + file_system.name + ": its content is made as it is read, so its size is unknown",
                 hint};
  }
  if (!seems_empty || !has_bytes(fd)) return {};
  return Error{Code::unsupported, 0, name + " claims to be empty but has bytes, so its size is unknown", hint};
}

// What all files of a mount have in common.
struct MountFacts {
  FileSystem file_system;
  DiskFacts disk;  // of those of this machine
};
// Not within the function: a child that is forked while a thread makes it there would wait for that thread.
ByMount<MountFacts> known_facts;
std::optional<MountFacts> mount_facts(int fd, const FileStatus& status) {
  return known_facts.of(fd, status.mount, [&]() -> std::optional<MountFacts> {
    struct statfs system = {};
    if (::fstatfs(fd, &system) != 0) return std::nullopt;
    MountFacts facts{file_system_from_magic(static_cast<std::uint32_t>(system.f_type)), {}};
    if (facts.file_system.locality == Locality::local) facts.disk = disk_facts(device_of(status.basic));
    return facts;
  });
}

// Found out when a file is first written to: it may ask about other file systems.
std::string why_volatile(int fd, const FileStatus& status) {
  static ByMount<std::string> known;
  // Of a block device it is not the mount of the node that counts.
  const auto mount = S_ISBLK(status.basic.st_mode) ? std::nullopt : status.mount;
  return known.of(fd, mount, [&] { return std::optional(volatile_because(fd)); }).value_or("");
}

engine::State state_from(const struct stat& status, std::uint64_t size_bytes) {
  const bool is_device = S_ISBLK(status.st_mode);
  const DeviceNumber device = device_of(status);
  std::array<char, 160> text{};
  char* at = text.data();
  const auto add_text = [&](std::string_view part) { at = std::copy(part.begin(), part.end(), at); };
  const auto add = [&](auto number) { at = std::to_chars(at, text.data() + text.size(), number).ptr; };
  add(device.major);
  add_text(":");
  add(device.minor);
  add_text(", inode ");
  add(status.st_ino);
  add_text(", ");
  add(size_bytes);
  add_text(" bytes");
  // The times of a device node say nothing about the content of the device.
  if (!is_device) {
    constexpr long billion = 1'000'000'000;
    add_text(", modified at ");
    add(status.st_mtim.tv_sec);
    add_text(".");
    char* const fraction = at;
    add(billion + status.st_mtim.tv_nsec);  // with a leading 1, which makes nine digits of any
    at = std::copy(fraction + 1, at, fraction);
  }
  return {Identity(std::string(text.data(), at)), size_bytes};
}

void tell_state(StoreInfo& info, engine::State state) {
  info.identity = std::move(state.identity);
  info.size_bytes = state.size_bytes;
}

// What opening has found out of a file, and needs once more.
struct Found {
  FileStatus status;
  DiskFacts disk;
};

Result<Found> describe_block_device(OpenedFile& file, const std::string& name, const FileStatus& status) {
  auto geometry = block_device_geometry(file.buffered.get(), name);
  if (!geometry) return std::move(geometry).error();
  StoreInfo& info = file.info;
  tell_state(info, state_from(status.basic, geometry->size_bytes));
  info.kind = StoreKind::block_device;
  info.file_system = "block";
  info.block_bytes = geometry->block_bytes;
  return Found{status, disk_facts(device_of(status.basic))};
}

Result<Found> describe_file(OpenedFile& file, const std::string& name, Access access, const FileStatus& status) {
  const int fd = file.buffered.get();
  StoreInfo& info = file.info;
  tell_state(info, state_from(status.basic, static_cast<std::uint64_t>(status.basic.st_size)));
  auto facts = mount_facts(fd, status);
  if (!facts) return system_error(errno, "ask about the file system of " + name);
  const bool is_there = access == Access::read || access == Access::write;
  Status length = check_length(fd, name, facts->file_system, is_there && info.size_bytes == 0);
  if (!length) return std::move(length).error();
  file.number = file_number(status.basic);
  info.kind = StoreKind::file;
  info.locality = facts->file_system.locality;
  info.file_system = std::move(facts->file_system.name);
  info.block_bytes = sector_bytes;
  if (is_remote(info.locality)) {
    info.alignments.optimal =
        std::max(remote_operation_bytes, power_of_two_or_zero(static_cast<std::uint64_t>(status.basic.st_blksize)));
  }
  return Found{status, facts->disk};
}

// What does not change while a file lives need not be asked for again.
std::optional<FileStatus> status_again(int fd, const std::optional<FileStatus>& known) {
  struct stat now = {};
  const bool is_known =
      known && S_ISREG(known->basic.st_mode) && ::fstat(fd, &now) == 0 && same_file(now, known->basic);
  return is_known ? FileStatus{now, known->mount, known->direct} : status_of(fd);
}

// `known`: of the file that had the name a moment ago.
Result<Found> describe(OpenedFile& file, const std::string& name, Access access,
                       const std::optional<FileStatus>& known = {}) {
  const int fd = file.buffered.get();
  const auto status = status_again(fd, known);
  if (!status) return system_error(errno, "ask about " + name);
  if (Status kind = check_kind(status->basic, name, access); !kind) return std::move(kind).error();
  StoreInfo& info = file.info;
  info.name = name;
  info.device = device_of(status->basic).name();
  info.writable = access != Access::read;
  info.page_cache = true;
  info.mappable = true;
  if (info.writable) info.volatile_because = why_volatile(fd, *status);
  return S_ISBLK(status->basic.st_mode) ? describe_block_device(file, name, *status)
                                        : describe_file(file, name, access, *status);
}

constexpr const char* own_descriptors = "/proc/self/fd";

// What a descriptor means, whatever has become of its name. Only where there is a /proc.
std::string path_of(int descriptor) {
  return std::string(own_descriptors) + "/" + std::to_string(descriptor);
}

int direct_flags(bool writable) {
  return (writable ? O_RDWR : O_RDONLY) | O_DIRECT | O_NONBLOCK | O_CLOEXEC;
}

// A name that has come to mean another file is found out by state(), and must not mix two files here.
UniqueFd second_of(const struct stat& file, UniqueFd direct) {
  if (!direct || !is_file(direct.get(), file)) return {};
  make_blocking(direct.get(), O_DIRECT);
  return direct;
}

// Where the file system says that direct transfers work, the second descriptor is opened when it is first needed: files
// whose bytes are cached never need it. Elsewhere only opening it tells.
void add_direct(OpenedFile& file, const Found& found) {
  StoreInfo& info = file.info;
  const auto& support = found.status.direct;
  if (info.locality != Locality::local || (support && support->offset_alignment == 0)) return;
  const bool later = support && info.kind == StoreKind::file && !file.replacement;
  if (!later) {
    const int flags = direct_flags(info.writable);
    const int direct = file.replacement ? file.replacement->open(flags) : ::open(file.path.c_str(), flags);
    file.direct = second_of(found.status.basic, UniqueFd(direct));
  }
  info.direct = later || file.direct;
  if (!info.direct) return;
  info.alignments = direct_alignments(found.status, info.block_bytes, found.disk);
  info.queues = found.disk.queues;
}

struct Opening {
  UniqueFd fd;
  bool created = false;
  bool maybe_created = false;
};
// `known`: the name's status, if somebody has just asked.
Result<Opening> open_buffered(const std::string& name, const OpenOptions& options,
                              const std::optional<struct stat>& known) {
  const Access access = options.access;
  int flags = O_CLOEXEC | O_NOCTTY | access_flags(access);
  struct stat status = {};
  if (known) status = *known;
  if (known || ::stat(name.c_str(), &status) == 0) {
    if (Status kind = check_kind(status, name, access); !kind) return std::move(kind).error();
    if (S_ISBLK(status.st_mode)) {
      if (Status free = check_block_device_access(status, name, options); !free) return std::move(free).error();
      flags |= access == Access::read ? 0 : O_EXCL;
    } else {
      flags |= O_NONBLOCK;  // a pipe that took the name meanwhile must not hold us up
    }
  } else if (errno == ENOENT && access == Access::create) {
    UniqueFd made(uninterrupted([&] { return ::open(name.c_str(), flags | O_NONBLOCK | O_CREAT | O_EXCL, 0666); }));
    if (made) return Opening{std::move(made), true, true};
    if (errno != EEXIST) return open_error(errno, name, access);
    // Through a link that points nowhere yet, or made by another meanwhile. What was not a link then is not followed.
    const auto end = link_target(name);
    if (!end) return end.error();
    flags |= O_NONBLOCK | O_CREAT | O_NOFOLLOW;
    UniqueFd fd(uninterrupted([&] { return ::open(end->c_str(), flags, 0666); }));
    if (fd) return Opening{std::move(fd), false, true};
    return open_error(errno, name, access);
  } else {
    return open_error(errno, name, access);
  }
  UniqueFd fd(uninterrupted([&] { return ::open(name.c_str(), flags, 0666); }));
  if (fd) return Opening{std::move(fd), false, false};
  if (errno == EBUSY) {
    return Error{Code::in_use, EBUSY, name + " is in use: another program or driver holds it exclusively",
                 "stop the program that uses it first (lsblk and fuser show it)"};
  }
  return open_error(errno, name, access);
}

Status check_descriptor(int descriptor, const std::string& name, Access access, struct stat& status) {
  if (::fstat(descriptor, &status) == 0) return check_kind(status, name, access);
  if (errno != EBADF) return system_error(errno, "ask about " + name);
  return Error{Code::invalid_argument, EBADF,
               "descriptor " + std::to_string(descriptor) + ", by which " + name + " is to be opened, is not open",
               "hand over one that stays open meanwhile"};
}

std::string absolute_path(const std::string& name) {
  if (name.starts_with('/')) return name;
  std::error_code ignored;
  return std::filesystem::absolute(name, ignored).string();
}

engine::Room room_of(const OpenOptions& options) {
  return {std::min(options.reserve_from, options.size_bytes), options.size_bytes};
}

// As kernels do with fs.protected_symlinks, and with fs.protected_regular if the caller asks for the file to be made.
// Called after the file was opened: another user can't exchange his link for one of this user.
Status check_shared_folder(const struct stat& status, const std::string& name, Access access) {
  const bool is_of_process = name.starts_with("/proc/");  // a descriptor, whose file may have no name
  if (access == Access::read || !S_ISREG(status.st_mode) || is_of_process) return {};
  const auto end = link_target(name);
  if (!end) return end.error();
  struct stat folder = {};
  struct stat named = {};
  const std::string parent = end->parent_path().string();
  if (::stat(parent.c_str(), &folder) != 0) return system_error(errno, "ask about the folder " + parent);
  const bool is_named = ::lstat(end->c_str(), &named) == 0 && same_file(named, status);
  if (!is_named && is_shared_folder(folder)) {
    return Error{Code::changed, 0, name + " was replaced while it was opened", "open it again"};
  }
  return access == Access::create ? check_own_in_shared_folder(folder, status, name) : Status();
}

// Other users may rename folders of theirs that lead to the file: it is removed from the folder that has it, or not.
void remove_made(const std::string& path, int file) {
  const std::filesystem::path name(path);
  const UniqueFd folder(::open(name.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const std::string last = name.filename().string();
  if (folder && is_name_of(folder.get(), last, file)) ::unlinkat(folder.get(), last.c_str(), 0);
}

// With the room that is asked for.
Result<Found> with_room(OpenedFile& file, const std::string& name, const OpenOptions& options, Result<Found> found) {
  if (!found || options.access != Access::create || options.size_bytes <= file.info.size_bytes) return found;
  Status reserved = reserve_space(file.buffered.get(), name, room_of(options));
  if (!reserved) return std::move(reserved).error();
  return describe(file, name, options.access);
}

Result<Found> open_again(OpenedFile& file, const std::string& name, const OpenOptions& options) {
  struct stat meant = {};
  if (Status usable = check_descriptor(options.descriptor, name, options.access, meant); !usable)
    return std::move(usable).error();
  const int flags = access_flags(options.access) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  file.buffered = UniqueFd(uninterrupted([&] { return ::open(path_of(options.descriptor).c_str(), flags); }));
  if (file.buffered) {
    file.path = path_of(file.buffered.get());
  } else if (const int error = errno; error != ENOENT || ::access(own_descriptors, F_OK) == 0) {
    return open_error(error, name, options.access);
  } else {
    file.path = absolute_path(name);
    auto opening = open_buffered(name, options, {});
    if (!opening) return std::move(opening).error();
    file.buffered = std::move(opening->fd);
  }
  auto found = describe(file, name, options.access);
  if (found && !same_file(found->status.basic, meant)) {
    return Error{Code::changed, 0, name + " is no longer the file that was opened", "open it again"};
  }
  if (!found) return found;
  if (Status unused = check_file_unused(found->status.basic, name, options.access); !unused) {
    return std::move(unused).error();
  }
  return with_room(file, name, options, std::move(found));
}

Result<Found> open_in_place(OpenedFile& file, const std::string& name, const OpenOptions& options,
                            const Lookup& known) {
  file.path = absolute_path(name);
  auto opening = open_buffered(name, options, known.status);
  if (!opening) return std::move(opening).error();
  file.buffered = std::move(opening->fd);
  file.name_is_new = opening->maybe_created;
  auto found = describe(file, name, options.access, known.all);
  if (!found) return found;
  if (!opening->created) {
    Status free = check_file_unused(found->status.basic, name, options.access);
    if (free) free = check_shared_folder(found->status.basic, name, options.access);
    if (!free) return std::move(free).error();
  }
  found = with_room(file, name, options, std::move(found));
  if (!found && opening->created) remove_made(file.path, file.buffered.get());
  return found;
}

Result<Found> open_replacement(OpenedFile& file, const std::string& name, const OpenOptions& options) {
  auto replacement = Replacement::create(name, options.descriptor);
  if (!replacement) return std::move(replacement).error();
  file.path = name;
  file.replacement = std::move(*replacement);
  file.buffered = UniqueFd(file.replacement->open(O_RDWR));
  if (!file.buffered) return open_error(errno, name, options.access);
  if (Status status = reserve_space(file.buffered.get(), name, room_of(options)); !status) {
    return std::move(status).error();
  }
  return describe(file, name, options.access);
}

Error no_space(int error, const std::string& name, std::uint64_t bytes) {
  const char* hint = error == EDQUOT  ? "this user's quota is used up: remove files or ask for more"
                     : error == EFBIG ? "the size is beyond what the file system or the limit of this process "
                                        "(ulimit -f) allows"
                                      : "free some space, or write to another disk";
  Error made = system_error(error, "reserve " + std::to_string(bytes) + " bytes for " + name, hint);
  made.code = Code::no_space;
  return made;
}

bool beyond_process_limit(std::uint64_t end) {
  struct rlimit limit = {};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && end > limit.rlim_cur;
}

// Asked first: fallocate takes all the room there is before it gives up, and leaves none to others meanwhile.
bool beyond_free_space(int fd, std::uint64_t bytes) {
  struct statvfs system = {};
  // Some that have no limit tell no size.
  return ::fstatvfs(fd, &system) == 0 && system.f_frsize != 0 && system.f_blocks != 0 &&
         bytes / system.f_frsize > system.f_bfree;
}

// 0 or the error number.
int grow(int fd, off_t begin, off_t end) {
  constexpr off_t least_step = 64 << 10;
  off_t step = end - begin;
  for (int interruptions = 0; begin < end;) {
    const off_t bytes = std::min(step, end - begin);
    if (::fallocate(fd, 0, begin, bytes) == 0) {
      begin += bytes;
      interruptions = 0;
      continue;
    }
    if (errno != EINTR || ++interruptions == max_interruptions) break;
    // tmpfs undoes all that it has done: less of it ends before the next signal.
    step = std::max(bytes / 2, least_step);
  }
  if (begin < end && errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  return uninterrupted([&] { return ::ftruncate(fd, end); }) == 0 ? 0 : errno;
}

Result<OpenedFile> open_known(const std::string& name, const OpenOptions& options, const Lookup& known) {
  if (name.find('\0') != std::string::npos) {
    return Error{Code::invalid_argument, EINVAL, "the file name contains a zero byte", "check the name"};
  }
  Result<OpenedFile> opened = OpenedFile();
  OpenedFile& file = *opened;
  auto found = options.access == Access::replace ? open_replacement(file, name, options)
               : options.descriptor >= 0         ? open_again(file, name, options)
                                                 : open_in_place(file, name, options, known);
  if (!found) return std::move(found).error();
  file.is_nonblocking = file.info.kind == StoreKind::file && !is_remote(file.info.locality);
  if (!file.is_nonblocking) make_blocking(file.buffered.get());
  add_direct(file, *found);
  return opened;
}

}  // namespace

void make_blocking(int fd, int kept) {
  ::fcntl(fd, F_SETFL, kept);
}

Result<OpenedFile> open_file(const std::string& name, const OpenOptions& options) {
  return open_known(name, options, {});
}

std::optional<Result<OpenedFile>> open_file_now(const std::string& name, const OpenOptions& options) {
  const Lookup known = look_in_memory(name);
  if (known.may_wait) return std::nullopt;
  return open_known(name, options, known);
}

UniqueFd open_direct(int buffered, const std::string& path, bool writable) {
  const int flags = direct_flags(writable);
  struct stat status = {};
  if (::fstat(buffered, &status) != 0) return {};
  UniqueFd direct(uninterrupted([&] { return ::open(path_of(buffered).c_str(), flags); }));
  if (!direct && errno == ENOENT) direct = UniqueFd(::open(path.c_str(), flags));
  return second_of(status, std::move(direct));
}

engine::State state_of_file(const struct stat& status) {
  return state_from(status, static_cast<std::uint64_t>(status.st_size));
}

Result<engine::State> state_of(int fd, const std::string& name) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "ask about " + name);
  if (!S_ISBLK(status.st_mode)) return state_of_file(status);
  auto geometry = block_device_geometry(fd, name);
  if (!geometry) return std::move(geometry).error();
  return state_from(status, geometry->size_bytes);
}

Status reserve_space(int fd, const std::string& name, engine::Room room) {
  const std::uint64_t end = room.end;
  auto state = state_of(fd, name);
  if (!state) return std::move(state).error();
  if (end <= state->size_bytes) return {};
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "ask about " + name);
  if (S_ISBLK(status.st_mode)) {
    return Error{
        Code::out_of_range, 0,
        name + " has " + std::to_string(state->size_bytes) + " bytes; " + std::to_string(end) + " were requested",
        "a device can't grow: write less, or elsewhere"};
  }
  const std::uint64_t begin = std::clamp(room.begin, state->size_bytes, end);
  const std::uint64_t bytes = end - begin;
  // The kernel would answer with a signal that ends the process.
  if (end > std::numeric_limits<off_t>::max() || beyond_process_limit(end)) return no_space(EFBIG, name, bytes);
  if (beyond_free_space(fd, bytes)) return no_space(ENOSPC, name, bytes);
  const auto size = static_cast<off_t>(state->size_bytes);
  const int error = grow(fd, static_cast<off_t>(begin), static_cast<off_t>(end));
  if (error == 0) return {};
  [[maybe_unused]] const int restored = ::ftruncate(fd, size);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return no_space(error, name, bytes);
  return system_error(error, "reserve " + std::to_string(bytes) + " bytes for " + name);
}

}  // namespace penstock::files

namespace penstock {

Result<Identity> Identity::of_file(int descriptor) {
  auto state = files::state_of(descriptor, "the file");
  if (!state) return std::move(state).error();
  return std::move(state->identity);
}

}  // namespace penstock
