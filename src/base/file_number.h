// A number for a file, whatever it contains: the same for as long as the file exists.
//
// Thread safety: a function.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace penstock {

// Never 0. Two files may have the same number, though hardly ever.
inline std::uint64_t file_number(const struct stat& status) {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15;
  return (static_cast<std::uint64_t>(status.st_dev) * odd ^ static_cast<std::uint64_t>(status.st_ino)) | 1ULL << 63;
}

}  // namespace penstock
