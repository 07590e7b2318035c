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
#include <cstdio>
#include <filesystem>
#include <limits>

#include "base/open_hint.h"
#include "files/device_use.h"
#include "files/durability.h"
#include "files/file_kind.h"

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
Status check_file_unused(int fd, const std::string& name, Access access) {
  if (access == Access::read) return {};
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "ask about " + name);
  return S_ISREG(status.st_mode) ? check_unused(status, name, FileChange::in_place) : Status();
}

// O_NONBLOCK is for the moment of opening only: io_uring would fail where it should wait.
void make_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

std::uint32_t power_of_two_or_zero(std::uint64_t value) {
  return std::has_single_bit(value) && value <= std::numeric_limits<std::uint32_t>::max()
             ? static_cast<std::uint32_t>(value)
             : 0;
}

// What the file system says about direct transfers; zeros where it says nothing.
struct DirectSupport {
  bool refused = false;
  std::uint32_t memory_alignment = 0;
  std::uint32_t offset_alignment = 0;
};
DirectSupport direct_support(int fd) {
  struct statx extended = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &extended) != 0) return {};
  if ((extended.stx_mask & STATX_DIOALIGN) == 0) return {};
  return {extended.stx_dio_offset_align == 0, power_of_two_or_zero(extended.stx_dio_mem_align),
          power_of_two_or_zero(extended.stx_dio_offset_align)};
}

bool same_file(int a, int b) {
  struct stat first = {};
  struct stat second = {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

DeviceNumber device_of(const struct stat& status) {
  return device_number(S_ISBLK(status.st_mode) ? status.st_rdev : status.st_dev);
}

Alignments direct_alignments(const struct stat& status, const StoreInfo& info, const DirectSupport& support) {
  const DeviceNumber device = device_of(status);
  const std::uint32_t block =
      std::max(info.block_bytes, power_of_two_or_zero(queue_limit(device, "logical_block_size").value_or(0)));
  const std::uint32_t optimal = power_of_two_or_zero(queue_limit(device, "optimal_io_size").value_or(0));
  return {.offset = std::max({direct_alignment_bytes, support.offset_alignment, block}),
          .memory = support.memory_alignment != 0 ? support.memory_alignment : std::max(sector_bytes, block),
          .optimal = optimal != 0 ? optimal : power_of_two_or_zero(static_cast<std::uint64_t>(status.st_blksize))};
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

Status describe(OpenedFile& file, const std::string& name, Access access) {
  const int fd = file.buffered.get();
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "ask about " + name);
  if (Status kind = check_kind(status, name, access); !kind) return kind;
  auto state = state_of(fd, name);
  if (!state) return std::move(state).error();

  StoreInfo& info = file.info;
  info.name = name;
  info.identity = std::move(state->identity);
  info.device = device_of(status).name();
  info.size_bytes = state->size_bytes;
  info.writable = access != Access::read;
  info.page_cache = true;
  info.mappable = true;
  if (info.writable) info.volatile_because = volatile_because(fd);
  if (S_ISBLK(status.st_mode)) {
    auto geometry = block_device_geometry(fd, name);
    if (!geometry) return std::move(geometry).error();
    info.kind = StoreKind::block_device;
    info.file_system = "block";
    info.block_bytes = geometry->block_bytes;
    return {};
  }
  struct statfs system = {};
  if (::fstatfs(fd, &system) != 0) return system_error(errno, "ask about the file system of " + name);
  FileSystem file_system = file_system_from_magic(static_cast<std::uint32_t>(system.f_type));
  const bool is_there = access == Access::read || access == Access::write;
  if (Status length = check_length(fd, name, file_system, is_there && info.size_bytes == 0); !length) return length;
  info.kind = StoreKind::file;
  info.locality = file_system.locality;
  if (is_remote(info.locality)) {
    info.alignments.optimal =
        std::max(remote_operation_bytes, power_of_two_or_zero(static_cast<std::uint64_t>(status.st_blksize)));
  }
  info.file_system = std::move(file_system.name);
  info.block_bytes = sector_bytes;
  return {};
}

// To ask takes nearly as long as to open a file, and the next file is likely to be on the same disk.
std::uint32_t queues_of(DeviceNumber device) {
  thread_local DeviceNumber last;
  thread_local std::uint32_t queues = 0;
  if (device != last) queues = count_queues(device);
  last = device;
  return queues;
}

// Opens the second descriptor, where direct transfers work.
void open_direct(OpenedFile& file, int access_flags) {
  if (file.info.locality != Locality::local) return;
  const DirectSupport support = direct_support(file.buffered.get());
  if (support.refused) return;
  const int flags = access_flags | O_DIRECT | O_NONBLOCK | O_CLOEXEC;
  UniqueFd direct(file.replacement ? file.replacement->open(flags) : ::open(file.path.c_str(), flags));
  // A name that has come to mean another file is found out by state(), and must not mix two files here.
  if (!direct || !same_file(direct.get(), file.buffered.get())) return;
  make_blocking(direct.get());
  struct stat status = {};
  if (::fstat(direct.get(), &status) != 0) return;
  file.info.alignments = direct_alignments(status, file.info, support);
  file.info.queues = queues_of(device_of(status));
  file.info.direct = true;
  file.direct = std::move(direct);
}

struct Opening {
  UniqueFd fd;
  bool created = false;
  bool maybe_created = false;
};
Result<Opening> open_buffered(const std::string& name, const OpenOptions& options) {
  const Access access = options.access;
  int flags = O_CLOEXEC | O_NOCTTY | (access == Access::read ? O_RDONLY : O_RDWR);
  struct stat status = {};
  if (::stat(name.c_str(), &status) == 0) {
    if (Status kind = check_kind(status, name, access); !kind) return std::move(kind).error();
    if (S_ISBLK(status.st_mode)) {
      if (Status free = check_block_device_access(status, name, options); !free) return std::move(free).error();
      flags |= access == Access::read ? 0 : O_EXCL;
    } else {
      flags |= O_NONBLOCK;  // a pipe that took the name meanwhile must not hold us up
    }
  } else if (errno == ENOENT && access == Access::create) {
    UniqueFd made(::open(name.c_str(), flags | O_NONBLOCK | O_CREAT | O_EXCL, 0666));
    if (made) return Opening{std::move(made), true, true};
    if (errno != EEXIST) return open_error(errno, name, access);
    flags |= O_NONBLOCK | O_CREAT;  // through a link that points nowhere yet, or made by another meanwhile
  } else {
    return open_error(errno, name, access);
  }
  UniqueFd fd(::open(name.c_str(), flags, 0666));
  if (fd) return Opening{std::move(fd), false, (flags & O_CREAT) != 0};
  if (errno == EBUSY) {
    return Error{Code::in_use, EBUSY, name + " is in use: another program or driver holds it exclusively",
                 "stop the program that uses it first (lsblk and fuser show it)"};
  }
  return open_error(errno, name, access);
}

constexpr const char* own_descriptors = "/proc/self/fd";

// What a descriptor means, whatever has become of its name. Only where there is a /proc.
std::string path_of(int descriptor) {
  return std::string(own_descriptors) + "/" + std::to_string(descriptor);
}

Status check_descriptor(int descriptor, const std::string& name, Access access) {
  struct stat status = {};
  if (::fstat(descriptor, &status) == 0) return check_kind(status, name, access);
  if (errno != EBADF) return system_error(errno, "ask about " + name);
  return Error{Code::invalid_argument, EBADF,
               "descriptor " + std::to_string(descriptor) + ", by which " + name + " is to be opened, is not open",
               "hand over one that stays open meanwhile"};
}

Result<OpenedFile> open_again(const std::string& name, const OpenOptions& options) {
  if (Status usable = check_descriptor(options.descriptor, name, options.access); !usable)
    return std::move(usable).error();
  OpenedFile file;
  const int access = options.access == Access::read ? O_RDONLY : O_RDWR;
  file.buffered = UniqueFd(::open(path_of(options.descriptor).c_str(), access | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (file.buffered) {
    file.path = path_of(file.buffered.get());
  } else if (const int error = errno; error != ENOENT || ::access(own_descriptors, F_OK) == 0) {
    return open_error(error, name, options.access);
  } else {
    std::error_code ignored;
    file.path = std::filesystem::absolute(name, ignored).string();
    auto opening = open_buffered(name, options);
    if (!opening) return std::move(opening).error();
    file.buffered = std::move(opening->fd);
  }
  if (!same_file(file.buffered.get(), options.descriptor)) {
    return Error{Code::changed, 0, name + " is no longer the file that was opened", "open it again"};
  }
  if (Status status = describe(file, name, options.access); !status) return std::move(status).error();
  return file;
}

engine::Room room_of(const OpenOptions& options) {
  return {std::min(options.reserve_from, options.size_bytes), options.size_bytes};
}

Result<OpenedFile> open_in_place(const std::string& name, const OpenOptions& options) {
  std::error_code ignored;
  OpenedFile file;
  file.path = std::filesystem::absolute(name, ignored).string();
  auto opening = open_buffered(name, options);
  if (!opening) return std::move(opening).error();
  file.buffered = std::move(opening->fd);
  file.name_is_new = opening->maybe_created;
  if (Status status = describe(file, name, options.access); !status) return std::move(status).error();
  if (!opening->created) {
    if (Status unused = check_file_unused(file.buffered.get(), name, options.access); !unused) {
      return std::move(unused).error();
    }
  }
  if (options.access == Access::create && options.size_bytes > file.info.size_bytes) {
    Status status = reserve_space(file.buffered.get(), name, room_of(options));
    if (status) status = describe(file, name, options.access);
    if (!status) {
      if (opening->created) ::unlink(file.path.c_str());
      return std::move(status).error();
    }
  }
  return file;
}

Result<OpenedFile> open_replacement(const std::string& name, const OpenOptions& options) {
  OpenedFile file;
  auto replacement = Replacement::create(name);
  if (!replacement) return std::move(replacement).error();
  file.path = name;
  file.replacement = std::move(*replacement);
  file.buffered = UniqueFd(file.replacement->open(O_RDWR));
  if (!file.buffered) return open_error(errno, name, options.access);
  if (Status status = reserve_space(file.buffered.get(), name, room_of(options)); !status) {
    return std::move(status).error();
  }
  if (Status status = describe(file, name, options.access); !status) return std::move(status).error();
  return file;
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
  for (int i = 0; i < max_interruptions && begin < end; ++i) {
    if (::fallocate(fd, 0, begin, end - begin) == 0) return 0;
    if (errno != EINTR) break;
  }
  if (begin < end && errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  return ::ftruncate(fd, end) == 0 ? 0 : errno;
}

}  // namespace

Result<OpenedFile> open_file(const std::string& name, const OpenOptions& options) {
  if (name.find('\0') != std::string::npos) {
    return Error{Code::invalid_argument, EINVAL, "the file name contains a zero byte", "check the name"};
  }
  auto file = options.descriptor >= 0             ? open_again(name, options)
              : options.access == Access::replace ? open_replacement(name, options)
                                                  : open_in_place(name, options);
  if (!file) return file;
  make_blocking(file->buffered.get());
  open_direct(*file, options.access == Access::read ? O_RDONLY : O_RDWR);
  return file;
}

Result<engine::State> state_of(int fd, const std::string& name) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return system_error(errno, "ask about " + name);
  const bool is_device = S_ISBLK(status.st_mode);
  auto size_bytes = static_cast<std::uint64_t>(status.st_size);
  if (is_device) {
    auto geometry = block_device_geometry(fd, name);
    if (!geometry) return std::move(geometry).error();
    size_bytes = geometry->size_bytes;
  }
  std::string text = device_number(is_device ? status.st_rdev : status.st_dev).name() + ", inode " +
                     std::to_string(status.st_ino) + ", " + std::to_string(size_bytes) + " bytes";
  // The times of a device node say nothing about the content of the device.
  if (!is_device) {
    std::array<char, 64> modified{};
    std::snprintf(modified.data(), modified.size(), ", modified at %lld.%09ld",
                  static_cast<long long>(status.st_mtim.tv_sec), static_cast<long>(status.st_mtim.tv_nsec));
    text += modified.data();
  }
  return engine::State{Identity(std::move(text)), size_bytes};
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
