// Cutting a range into operations that a store can take. A pure function: where does the next operation end, and must
// it go through staging memory?
#pragma once

#include <cstdint>

#include "engine/op.h"
#include "penstock/request.h"

namespace penstock::core {

struct CutRules {
  Direction direction = Direction::read;
  engine::Path path = engine::Path::buffered;
  std::uint64_t chunk_bytes = 1 << 20;    // operations end at multiples of this; a multiple of the alignment
  std::uint64_t longest_bytes = 1 << 20;  // and have at most this many bytes; a multiple of chunk_bytes
  std::uint64_t alignment = 4096;         // of offsets and lengths on the direct path; a power of two
  std::uint64_t memory_alignment = 512;   // of addresses there; a power of two
  bool staged_only = false;               // the memory is out of the engine's reach
  // The most that one staged operation may take, but a block at least; a multiple of the alignment on the direct path.
  std::uint64_t staging_bytes = 1 << 20;
};

// Operations without memory are as long as what a store without such operations of its own writes in a moment.
inline constexpr std::uint64_t memoryless_bytes_most = 64 << 20;

// What is left of a range.
struct Rest {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // not 0
  std::uintptr_t address = 0;
};

enum class Shape : std::uint8_t {
  plain,   // between the store and the caller's memory
  staged,  // the aligned range around it goes through staging memory
  edge,    // part of one block of a write
};

struct Cut {
  std::uint64_t length = 0;  // never 0, never more than the rest
  Shape shape = Shape::plain;

  friend bool operator==(const Cut&, const Cut&) = default;
};

Cut cut(const CutRules& rules, const Rest& rest);

// Powers of two only.
constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value & ~(alignment - 1);
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return align_down(value + alignment - 1, alignment);
}

}  // namespace penstock::core
