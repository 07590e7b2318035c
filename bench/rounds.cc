#include "rounds.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>

namespace bench {

void fail(const std::string& message) {
  std::cerr << message << std::endl;
  std::exit(1);
}

void fail_errno(const std::string& what) {
  fail(what + ": " + std::strerror(errno));
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Memory::Memory(std::size_t size_bytes) {
  constexpr std::size_t huge_page_bytes = 2 << 20;
  const std::size_t rounded = (size_bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  void* data = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail_errno("map " + std::to_string(rounded) + " bytes");
  // Refused where there are no transparent huge pages; then both sides do without.
  (void)madvise(data, rounded, MADV_HUGEPAGE);
  std::memset(data, 0, rounded);
  bytes_ = {static_cast<std::byte*>(data), rounded};
}

Memory::~Memory() {
  munmap(bytes_.data(), bytes_.size());
}

void evict(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail_errno("open " + path);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
}

void preallocate(const std::string& path, std::uint64_t size_bytes) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_errno("open " + path);
  errno = posix_fallocate(descriptor, 0, static_cast<off_t>(size_bytes));
  if (errno != 0) fail_errno("reserve " + std::to_string(size_bytes) + " bytes for " + path);
  if (fsync(descriptor) != 0) fail_errno("sync " + path);
  posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  close(descriptor);
}

void converse(const Json& ready, const std::map<std::string, Command>& commands) {
  std::cout << ready.dump() << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string name;
    double seconds = 0;
    words >> name >> seconds;
    const auto command = commands.find(name);
    if (command == commands.end()) fail("unknown command: " + line);
    std::cout << command->second(seconds).dump() << std::endl;
  }
}

}  // namespace bench
