// What the measuring programs share: the conversation with run.py, clocks, and the memory that is read into.
//
// A program sets itself up, prints one line of JSON, and then answers each line of its standard input with one line of
// JSON, so that a round measures neither the start of a process nor the first touch of memory. The lines are
// "run SECONDS" (whole loads until that much time was spent in them), "sample SECONDS" (may stop inside a load) and
// "check" (one more load, whose bytes are compared); some programs know more.
//
// Thread safety: one thread talks. Lifetime: a Memory owns its mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace bench {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& message);
[[noreturn]] void fail_errno(const std::string& what);

// Seconds of the monotonic clock.
double now();
// User and system time of the whole process so far.
double cpu_seconds();

// Anonymous memory with huge pages where the system gives them, touched. Both sides of a comparison read into this.
class Memory {
 public:
  explicit Memory(std::size_t size_bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// Drops the file's clean pages from the page cache.
void evict(const std::string& path);

// Makes the file anew: empty, of that size, all blocks reserved and synced, nothing of it in the page cache.
void preallocate(const std::string& path, std::uint64_t size_bytes);

using Command = std::function<Json(double seconds)>;

// Prints `ready`, then answers commands by name until the input ends.
void converse(const Json& ready, const std::map<std::string, Command>& commands);

}  // namespace bench
