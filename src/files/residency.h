// Residency: how much of a file is in the page cache.
//
// Thread safety: from any thread.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::files {

struct ByteRange {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Asks cachestat(2). Nothing where the kernel lacks it or refuses: files of others.
std::optional<std::uint64_t> resident_by_cachestat(int fd, ByteRange range);

// Asks mincore(2), for kernels before 6.5. REQUIRES: the caller owns the file or may write to it; for the files of
// others the kernel says that everything is resident.
std::optional<std::uint64_t> resident_by_mincore(int fd, ByteRange range);

// Asks preadv2(2) for one byte with RWF_NOWAIT, as anybody may who can read the file. A page that is not there may be
// brought in by that; with POSIX_FADV_RANDOM no others are. Nothing where the file system does not know the flag, or
// the read fails.
std::optional<bool> resident_by_reading(int fd, std::uint64_t offset);

// Bytes of a range of which `resident` of `pages` pages are cached; all of it exactly if they all are.
std::uint64_t bytes_from_pages(std::uint64_t length, std::uint64_t resident, std::uint64_t pages);

}  // namespace penstock::files
