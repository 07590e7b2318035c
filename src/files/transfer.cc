#include "files/transfer.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <limits>

namespace penstock::files {
namespace {

using engine::Done;
using engine::Op;
using engine::OpKind;
using engine::Path;

// Positional calls take signed offsets.
bool addressable(const Op& op) {
  constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  return op.offset <= max && op.length <= max - op.offset;
}

std::int64_t result_of(std::int64_t returned) {
  return returned < 0 ? -errno : returned;
}

std::int64_t zero(int fd, const Op& op) {
  const int failed =
      ::fallocate(fd, FALLOC_FL_ZERO_RANGE, static_cast<off_t>(op.offset), static_cast<off_t>(op.length));
  if (failed == 0) return static_cast<std::int64_t>(op.length);
  if (!needs_written_zeros(op, errno)) return -errno;
  const std::span<const std::byte> zeros = zeros_for(op);
  return result_of(::pwrite(fd, zeros.data(), zeros.size(), static_cast<off_t>(op.offset)));
}

std::int64_t deallocate(int fd, const Op& op) {
  int failed = 0;
  if (store_of(op).info().kind == StoreKind::block_device) {
    std::array<std::uint64_t, 2> range{op.offset, op.length};
    failed = ::ioctl(fd, BLKDISCARD, range.data());
  } else {
    failed = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(op.offset),
                         static_cast<off_t>(op.length));
  }
  return failed != 0 ? -errno : static_cast<std::int64_t>(op.length);
}

std::int64_t write(int fd, const Op& op, std::size_t bytes) {
  const std::int64_t written = result_of(::pwrite(fd, op.memory, bytes, static_cast<off_t>(op.offset)));
  if (op.starts_writeback && written > 0) {
    ::sync_file_range(fd, static_cast<off_t>(op.offset), written, SYNC_FILE_RANGE_WRITE);
  }
  return written;
}

std::int64_t run(int fd, const Op& op) {
  const auto offset = static_cast<off_t>(op.offset);
  const std::size_t bytes = std::min(op.length, max_transfer_bytes);
  switch (op.kind) {
    case OpKind::read:
      return result_of(::pread(fd, op.memory, bytes, offset));
    case OpKind::write:
      return write(fd, op, bytes);
    case OpKind::flush:
      return result_of(::fdatasync(fd));
    case OpKind::zero:
      return op.length == 0 ? 0 : zero(fd, op);
    case OpKind::deallocate:
      return op.length == 0 ? 0 : deallocate(fd, op);
    case OpKind::call:
      break;
  }
  return -EINVAL;
}

// Core tells by the number that these two are worth another try.
Code code_of(int error) {
  if (error == EAGAIN || error == EINTR) return Code::io_error;
  if (error == ECANCELED) return Code::cancelled;
  return code_from_errno(error);
}

}  // namespace

bool needs_written_zeros(const Op& op, int error) {
  return error == EOPNOTSUPP || error == ENOSYS ||
         (error == EINVAL && store_of(op).info().kind == StoreKind::block_device);
}

std::span<const std::byte> zeros_for(const Op& op) {
  static constexpr std::array<std::byte, 1 << 20> zeros{};
  return std::span(zeros).first(std::min<std::uint64_t>(zeros.size(), op.length));
}

int descriptor_of(const Op& op) {
  const FileStore& store = store_of(op);
  return moves_bytes(op.kind) && op.path == Path::direct ? store.direct_fd() : store.buffered_fd();
}

Done finish(const Op& op, std::int64_t result) {
  Done done{.cookie = op.cookie, .route = route_of(op.path)};
  if (result < 0) {
    done.system_error = static_cast<std::int32_t>(-result);
    done.code = code_of(done.system_error);
    // So the kernel says that a descriptor is for reading only.
    if (done.system_error == EBADF && !op.store->info().writable) done.code = Code::read_only;
  } else {
    done.bytes = static_cast<std::uint64_t>(result);
  }
  return done;
}

Done transfer(const Op& op) {
  if (op.kind == OpKind::call) {
    op.call->run();
    return finish(op, 0);
  }
  const int fd = descriptor_of(op);
  if (fd < 0 || !addressable(op)) return finish(op, -EINVAL);
  return finish(op, run(fd, op));
}

}  // namespace penstock::files
