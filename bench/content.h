// The content of every benchmark file: a function of the offset alone, so that bytes can be checked without reading
// the file a second way, and no two pages are equal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace bench {

// The eight bytes at `word_index * 8` (the finalizer of splitmix64).
inline std::uint64_t content_word(std::uint64_t word_index) {
  std::uint64_t z = (word_index + 1) * 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

// Writes what a file holds from `offset` on. Any offset and size.
inline void fill_content(std::uint64_t offset, std::span<std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::uint64_t position = offset + done;
    const std::uint64_t word = content_word(position / 8);
    const std::size_t skip = position % 8;
    const std::size_t take = bytes.size() - done < 8 - skip ? bytes.size() - done : 8 - skip;
    std::memcpy(bytes.data() + done, reinterpret_cast<const std::byte*>(&word) + skip, take);
    done += take;
  }
}

}  // namespace bench
