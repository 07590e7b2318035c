#include "support/support.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

namespace penstock::test {

namespace {

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  std::abort();
}

}  // namespace

// By a stack for each that no address space has room for.
NoMoreThreads::NoMoreThreads() {
  constexpr std::size_t stack_bytes = std::size_t{1} << 60;
  pthread_attr_t huge{};
  const bool set = ::pthread_getattr_default_np(&before_) == 0 && ::pthread_getattr_default_np(&huge) == 0 &&
                   ::pthread_attr_setstacksize(&huge, stack_bytes) == 0 && ::pthread_setattr_default_np(&huge) == 0;
  if (!set) give_up("pthread_setattr_default_np");
  ::pthread_attr_destroy(&huge);
}

NoMoreThreads::~NoMoreThreads() {
  ::pthread_setattr_default_np(&before_);
  ::pthread_attr_destroy(&before_);
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

TemporaryFolder::TemporaryFolder(const std::filesystem::path& parent) {
  std::string name = ((parent.empty() ? std::filesystem::temp_directory_path() : parent) / "penstock-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) give_up(name.c_str());
  folder_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) give_up(path.c_str());
}

bool write_sparse_file(const std::string& path, std::uint64_t size_bytes) {
  write_file(path, {});
  std::error_code error;
  std::filesystem::resize_file(path, size_bytes, error);
  return !error;
}

std::vector<std::byte> read_file(const std::string& path) {
  return read_file(path, 0, std::filesystem::file_size(path));
}

std::vector<std::byte> read_file(const std::string& path, std::uint64_t offset, std::size_t size) {
  std::vector<std::byte> bytes(size);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  // Read-ahead could bring into the page cache what a direct write elsewhere in the file is just replacing, and the old
  // bytes would stay there.
  if (fd < 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) != 0) give_up(path.c_str());
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::pread(fd, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got <= 0) give_up(path.c_str());
    done += static_cast<std::size_t>(got);
  }
  ::close(fd);
  return bytes;
}

std::vector<std::byte> read_past_cache(const std::string& path, std::uint64_t offset, std::size_t size) {
  constexpr std::size_t block_bytes = 4096;
  const std::size_t whole = (size + block_bytes - 1) / block_bytes * block_bytes;
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(block_bytes, whole), &std::free);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  const ssize_t got = fd < 0 ? -1 : ::pread(fd, memory.get(), whole, static_cast<off_t>(offset));
  if (got < 0) give_up(path.c_str());
  ::close(fd);
  const auto* bytes = static_cast<const std::byte*>(memory.get());
  std::vector<std::byte> found(bytes, bytes + std::min(static_cast<std::size_t>(got), size));
  found.resize(size);
  return found;
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
  std::array<char, 64 << 10> bytes;
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
