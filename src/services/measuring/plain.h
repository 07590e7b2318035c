// What a careful program does without a library: threads that read, write or copy. The yardsticks of all races.
//
// Thread safety: one thread calls; the threads are gone when it returns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "services/measuring/subject.h"

namespace penstock::measuring {

// What one round moved.
struct Sample {
  std::uint64_t bytes = 0;
  double seconds = 0;
  double cpu_seconds = 0;  // of the whole process
};

double cpu_seconds();
// Memory of this process's own, without pages of files.
std::uint64_t own_memory_bytes();

inline constexpr std::uint64_t largest_chunk_bytes = 4 << 20;

struct PlainSetting {
  std::uint32_t threads = 1;
  std::uint64_t chunk_bytes = 1 << 20;

  std::string text() const;  // "16 threads, 1 MiB"
};

struct PlainJob {
  int fd = -1;
  Direction direction = Direction::read;
  std::uint64_t size_bytes = 0;
  PlainSetting setting;
  std::span<std::byte> memory;  // for all of it, or a chunk for each thread
  double seconds = 0;           // reads: over and over until then; 0: once, and writes are synced
};
Result<Sample> run_plain(const PlainJob& job, const KeepGoing& keep_going);

// Copies of a pinned buffer to the front of GPU memory, or back, one after the other.
Result<Sample> run_copies(Region to, Region from, double seconds, const KeepGoing& keep_going);

struct PlainRandomJob {
  int fd = -1;
  std::uint64_t size_bytes = 0;
  std::uint32_t block_bytes = 4096;
  std::uint32_t depth = 1;      // as many threads
  std::span<std::byte> memory;  // a block for each
  Region to;                    // where each block is copied to after it was read; empty: nowhere
  double seconds = 0;
};
// Appends the seconds of each read.
Result<Sample> run_plain_random(const PlainRandomJob& job, std::vector<float>& latencies, const KeepGoing& keep_going);

}  // namespace penstock::measuring
