#include "files/residency.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

namespace penstock::files {
namespace {

// The system's headers may be older than the kernel; the number is the same on every architecture.
constexpr long cachestat_call = 451;
struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct Cachestat {
  std::uint64_t cached;
  std::uint64_t dirty;
  std::uint64_t writeback;
  std::uint64_t evicted;
  std::uint64_t recently_evicted;
};

std::uint64_t page_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

struct PageSpan {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};
// REQUIRES: range.length > 0, and the range does not wrap.
PageSpan pages_of(ByteRange range) {
  const std::uint64_t first = range.offset / page_bytes();
  return {first, (range.offset + range.length - 1) / page_bytes() - first + 1};
}

bool askable(ByteRange range) {
  constexpr auto max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return range.offset <= max && range.length <= max - range.offset;
}

// One bit of truth a page; a window bounds the memory and the mapping.
constexpr std::size_t window_pages = 16384;

std::optional<std::uint64_t> resident_pages(int fd, PageSpan window) {
  const std::size_t bytes = window.count * page_bytes();
  void* mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(window.first * page_bytes()));
  if (mapping == MAP_FAILED) return std::nullopt;
  // Not zeroed: of a short range the kernel fills a few bytes, and the rest is never looked at.
  std::array<unsigned char, window_pages> resident;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  const bool known = ::mincore(mapping, bytes, resident.data()) == 0;
  ::munmap(mapping, bytes);
  if (!known) return std::nullopt;
  const auto end = resident.begin() + static_cast<std::ptrdiff_t>(window.count);
  return static_cast<std::uint64_t>(std::count_if(resident.begin(), end, [](auto byte) { return (byte & 1) != 0; }));
}

}  // namespace

std::uint64_t bytes_from_pages(std::uint64_t length, std::uint64_t resident, std::uint64_t pages) {
  if (pages == 0 || resident >= pages) return length;
  return length / pages * resident + length % pages * resident / pages;
}

std::optional<std::uint64_t> resident_by_cachestat(int fd, ByteRange range) {
  if (range.length == 0) return 0;  // which cachestat would take for "to the end"
  if (!askable(range)) return std::nullopt;
  CachestatRange asked{range.offset, range.length};
  Cachestat answer{};
  if (::syscall(cachestat_call, fd, &asked, &answer, 0) != 0) return std::nullopt;
  return bytes_from_pages(range.length, answer.cached, pages_of(range).count);
}

std::optional<std::uint64_t> resident_by_mincore(int fd, ByteRange range) {
  if (range.length == 0) return 0;
  if (!askable(range)) return std::nullopt;
  const PageSpan pages = pages_of(range);
  std::uint64_t resident = 0;
  for (std::uint64_t done = 0; done < pages.count; done += window_pages) {
    const auto found =
        resident_pages(fd, {pages.first + done, std::min<std::uint64_t>(window_pages, pages.count - done)});
    if (!found) return std::nullopt;
    resident += *found;
  }
  return bytes_from_pages(range.length, resident, pages.count);
}

std::optional<bool> resident_by_reading(int fd, std::uint64_t offset) {
  char byte = 0;
  const iovec place{&byte, 1};
  if (!askable({offset, 1})) return std::nullopt;
  const ssize_t got = ::preadv2(fd, &place, 1, static_cast<off_t>(offset), RWF_NOWAIT);
  if (got == 1) return true;
  return got < 0 && errno == EAGAIN ? std::optional(false) : std::nullopt;
}

}  // namespace penstock::files
