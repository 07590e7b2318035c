// For tests: a folder that vanishes, and files in it.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace penstock::files {

class ScratchFolder {
 public:
  explicit ScratchFolder(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string name = (parent / "penstock-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      std::perror(name.c_str());
      std::abort();
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path(const std::string& name = {}) const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path(name);
  }
  // A file whose bytes tell their offset, on the disk and in the page cache.
  std::string write_pattern(const std::string& name, std::size_t size_bytes) const;
  std::string read(const std::string& name) const {
    // Not by iterators, which go byte by byte.
    std::ostringstream content;
    content << std::ifstream(path_ / name, std::ios::binary).rdbuf();
    return content.str();
  }
  std::size_t file_count() const {
    using Iterator = std::filesystem::directory_iterator;
    return static_cast<std::size_t>(std::distance(Iterator(path_), Iterator()));
  }

 private:
  std::filesystem::path path_;
};

inline std::byte pattern_at(std::size_t offset) {
  return static_cast<std::byte>(offset * 31 + (offset >> 12));
}

inline std::string ScratchFolder::write_pattern(const std::string& name, std::size_t size_bytes) const {
  std::string content(size_bytes, '\0');
  for (std::size_t i = 0; i < size_bytes; ++i) content[i] = static_cast<char>(pattern_at(i));
  write(name, content);
  const int fd = ::open(path(name).c_str(), O_RDONLY | O_CLOEXEC);
  ::fsync(fd);
  ::close(fd);
  return path(name);
}

inline bool has_pattern(const std::byte* data, std::size_t offset, std::size_t length) {
  for (std::size_t i = 0; i < length; ++i) {
    if (data[i] != pattern_at(offset + i)) return false;
  }
  return true;
}

// Page-aligned memory of fixed size.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t size_bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(4096, (size_bytes + 4095) / 4096 * 4096))) {
    if (data_ == nullptr) std::abort();
  }
  ~AlignedMemory() { std::free(data_); }
  AlignedMemory(const AlignedMemory&) = delete;
  AlignedMemory& operator=(const AlignedMemory&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

// Drops root's rights while it lives, for tests of permissions. No effect without root's rights.
class AsNobody {
 public:
  AsNobody() : was_(::geteuid()) {
    if (was_ == 0 && ::seteuid(65534) != 0) std::abort();
  }
  ~AsNobody() {
    if (was_ == 0 && ::seteuid(0) != 0) std::abort();
  }

 private:
  const uid_t was_;
};

}  // namespace penstock::files
