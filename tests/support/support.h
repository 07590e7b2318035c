// What tests of several folders share: temporary folders, bytes that can be checked, memory with guard pages.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "penstock/penstock.h"

namespace penstock::test {

inline constexpr bool under_thread_sanitizer =
#if defined(__SANITIZE_THREAD__)
    true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    true;
#else
    false;
#endif
#else
    false;
#endif

// Whether it becomes true within ten seconds.
bool eventually(const std::function<bool()>& condition);

// For what is stopped and has to come home: on a busy machine a tenth of a second, as usual, is too short, and what is
// still out by then is abandoned.
inline constexpr Deadlines patient{.cancel_grace_seconds = 5, .close_seconds = 10};

// What `move(seconds)` reports with a deadline by which its operations had begun: on a busy machine the first may be
// over before that.
template <typename Move>
Report past_deadline(Move move) {
  double seconds = 0.1;
  Report report = move(seconds);
  while (report.error && report.error->code == Code::timed_out && seconds < 10) report = move(seconds *= 4);
  return report;
}

// While it lives, the process can't start threads.
class NoMoreThreads {
 public:
  NoMoreThreads();
  ~NoMoreThreads();
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

// A folder that vanishes with its contents.
class TemporaryFolder {
 public:
  // Under `parent`, or under the system's temporary folder.
  explicit TemporaryFolder(const std::filesystem::path& parent = {});
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

// The bytes that stand at `offset` of content number `seed`.
std::vector<std::byte> content(std::uint64_t seed, std::uint64_t offset, std::size_t size);
// As std::equal, which goes byte by byte here.
bool same_bytes(std::span<const std::byte> some, std::span<const std::byte> others);
// As std::all_of, which goes byte by byte too.
bool all_are(std::span<const std::byte> bytes, std::byte value);
// Names the first byte that differs.
testing::AssertionResult holds_content(std::span<const std::byte> bytes, std::uint64_t seed, std::uint64_t offset);

void write_file(const std::string& path, std::span<const std::byte> bytes);
// Zeros that take no room. False where the file system has no file of this size.
bool write_sparse_file(const std::string& path, std::uint64_t size_bytes);
std::vector<std::byte> read_file(const std::string& path);
std::vector<std::byte> read_file(const std::string& path, std::uint64_t offset, std::size_t size);
// From a multiple of 4096; bytes past the end of the file are zero.
std::vector<std::byte> read_past_cache(const std::string& path, std::uint64_t offset, std::size_t size);
// Syncs the file and lets the page cache forget it.
void evict(const std::string& path);
// Reads the first `size` bytes of the file, or all, so that these and no others are in the page cache.
void warm(const std::string& path, std::uint64_t size = UINT64_MAX);

// Memory that ends (and begins, up to alignment) at pages which can't be touched.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t size);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }
  // The last byte is the last before the guard page, so the address has whatever alignment the size gives it.
  Region region() const { return Region::host(data_, size_); }

 private:
  std::byte* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace penstock::test
