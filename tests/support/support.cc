#include "support/support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace penstock::test {

namespace {

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

}  // namespace

TemporaryFolder::TemporaryFolder(const std::filesystem::path& parent) {
  std::string name = ((parent.empty() ? std::filesystem::temp_directory_path() : parent) / "penstock-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) give_up(name.c_str());
  folder_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::byte content_at(std::uint64_t seed, std::uint64_t offset) {
  return static_cast<std::byte>(mix(seed * 0x9e3779b97f4a7c15ULL + offset / 8) >> (offset % 8 * 8));
}

std::vector<std::byte> content(std::uint64_t seed, std::uint64_t offset, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = content_at(seed, offset + i);
  return bytes;
}

testing::AssertionResult holds_content(std::span<const std::byte> bytes, std::uint64_t seed, std::uint64_t offset) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != content_at(seed, offset + i)) {
      return testing::AssertionFailure() << "byte " << i << " of " << bytes.size() << ", at offset " << offset + i;
    }
  }
  return testing::AssertionSuccess();
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) give_up(path.c_str());
}

std::vector<std::byte> read_file(const std::string& path) {
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) give_up(path.c_str());
  return bytes;
}

void evict(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || ::fdatasync(fd) != 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0) give_up(path.c_str());
  ::close(fd);
}

void warm(const std::string& path, std::uint64_t size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Without this the kernel would read ahead of us.
  if (fd < 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) != 0) give_up(path.c_str());
  std::vector<char> bytes(1 << 20);
  for (std::uint64_t at = 0; at < size;) {
    const ssize_t got =
        ::pread(fd, bytes.data(), std::min<std::uint64_t>(bytes.size(), size - at), static_cast<off_t>(at));
    if (got < 0) give_up(path.c_str());
    if (got == 0) break;
    at += static_cast<std::uint64_t>(got);
  }
  ::close(fd);
}

GuardedMemory::GuardedMemory(std::size_t size) : size_(size) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t body = (size + page - 1) / page * page;
  mapped_ = body + 2 * page;
  void* mapping = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) give_up("mmap");
  mapping_ = static_cast<std::byte*>(mapping);
  if (body != 0 && ::mprotect(mapping_ + page, body, PROT_READ | PROT_WRITE) != 0) give_up("mprotect");
  data_ = mapping_ + page + body - size;
}

GuardedMemory::~GuardedMemory() {
  ::munmap(mapping_, mapped_);
}

}  // namespace penstock::test
