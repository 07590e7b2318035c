// DirectReads: reads many small files past the page cache, handed to the kernel at once: there, neighbours on the disk
// become one operation. One by one, or from many threads, each would be an operation of its own.
//
// Thread safety: one thread. Lifetime: nothing is under way between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace penstock::tiers {

class DirectReads {
 public:
  static constexpr std::size_t most = 64;  // at once

  struct Read {
    int file = -1;  // opened with O_DIRECT
    std::byte* place = nullptr;
    std::uint32_t bytes = 0;  // from the beginning of the file
    std::int64_t got = -1;    // how many have come; negative: none
  };

  DirectReads();
  ~DirectReads();
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;

  // Returns when none is under way any more. Where the kernel refuses, nothing has come: read it another way.
  // REQUIRES: at most `most`.
  void run(std::span<Read> reads);

 private:
  struct Ring;
  std::unique_ptr<Ring> ring_;  // null: there is none
};

}  // namespace penstock::tiers
