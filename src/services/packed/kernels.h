// The inner loops of packing, a tile of 1024 values at a time, for the instructions that a processor has.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "services/packed/format.h"

namespace penstock::packed {

// A tile in a chunk. All sections are whole.
struct StoredTile {
  const std::uint8_t* planes = nullptr;  // of codes, then raw ones
  const std::uint8_t* bytes = nullptr;
  const std::uint8_t* low = nullptr;
  const std::uint8_t* dictionary = nullptr;  // of 16; that of "exception" is ignored
  const std::uint8_t* exceptions = nullptr;  // from this tile on
  std::uint32_t exceptions_left = 0;
  std::uint32_t code_bits = 0;
};

struct Kernels {
  const char* name;
  bool (*run_here)();  // whether this processor has the instructions
  // Fills 1024 values. False: there are more exceptions than the chunk has.
  bool (*decode)(Kind kind, const StoredTile& tile, std::byte* out);
  // Sum of a tile of this many bytes, a multiple of 1024, at most 4096.
  std::uint64_t (*sum)(const std::byte* tile, std::size_t bytes);
  // Replaces each symbol by its code, or by the code of exceptions, and appends those. How many there were.
  std::uint32_t (*encode)(const std::uint8_t* symbols, const std::uint8_t* dictionary, std::uint32_t code_bits,
                          std::uint8_t* codes, std::uint8_t* exceptions);
  // Of 1024 bytes, as many planes of their lowest bits as asked for.
  void (*to_planes)(const std::uint8_t* bits, std::uint32_t planes, std::uint8_t* out);
  // Copies a multiple of 1024 bytes to memory at a multiple of 32, past the caches where that is possible: what is
  // written there need not be read first.
  void (*copy_past_caches)(std::byte* to, const std::byte* from, std::size_t bytes);
  // After such copies: others see what they wrote.
  void (*settle)();
};

extern const Kernels portable_kernels;
// Of this architecture, the fastest first.
std::span<const Kernels* const> fast_kernels();
// Those that run here, the fastest first; the portable ones are the last.
std::vector<const Kernels*> kernels_here();
// The fastest that run here, or those that the environment variable PENSTOCK_PACKED_KERNELS names, if they run here.
const Kernels& best_kernels();

// What is added to the words of a tile, for its sum.
inline constexpr std::size_t tile_words_most = tile_values;
alignas(64) inline constexpr std::array<std::uint32_t, tile_words_most> sum_keys = [] {
  std::array<std::uint32_t, tile_words_most> keys{};
  for (std::uint32_t j = 0; j < tile_words_most; ++j) {
    std::uint32_t z = (j + 1) * 0x9E3779B9U;
    z = (z ^ (z >> 16)) * 0x85EBCA6BU;
    z = (z ^ (z >> 13)) * 0xC2B2AE35U;
    keys[j] = z ^ (z >> 16);
  }
  return keys;
}();
// What a tile adds to the checksum of its chunk.
constexpr std::uint64_t mixed(std::uint64_t sum, std::uint32_t tile) {
  std::uint64_t z = sum + (std::uint64_t{tile} + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// What the code of a value stands for, in bytes of the value: one table for each byte that has bits of the symbol.
struct ByteTables {
  std::array<std::uint8_t, dictionary_size> first;   // of the higher byte
  std::array<std::uint8_t, dictionary_size> second;  // of the lower byte, of BF16 and F32
};

template <Kind kind>
inline ByteTables byte_tables_of(const StoredTile& tile) {
  constexpr Division division = division_of(kind);
  constexpr bool is_split = division.byte_bytes != 0;
  ByteTables tables;  // NOLINT(cppcoreguidelines-pro-type-member-init): all of it is written
  for (std::uint32_t code = 0; code < dictionary_size; ++code) {
    const std::uint32_t symbol = tile.dictionary[code] & division.symbol_mask;
    tables.first[code] = static_cast<std::uint8_t>(is_split ? symbol >> 1 : symbol << (kind == Kind::f8_e4m3 ? 3 : 2));
    tables.second[code] = static_cast<std::uint8_t>(is_split ? symbol << 7 : 0);
  }
  if (tile.code_bits != 0) tables.first[(1U << tile.code_bits) - 1] = tables.second[(1U << tile.code_bits) - 1] = 0;
  return tables;
}

// As wide as a value.
template <Kind kind>
using ValueOf =
    std::conditional_t<division_of(kind).value_bytes == 1, std::uint8_t,
                       std::conditional_t<division_of(kind).value_bytes == 2, std::uint16_t, std::uint32_t>>;

// One bit a value, in the order of values.
using EscapeMasks = std::array<std::uint64_t, tile_values / 64>;

// Puts the exceptions of a tile into values whose symbols are zero. Always part of its caller, for whose instructions
// it is compiled.
template <Kind kind>
[[gnu::always_inline]] inline bool patch(const StoredTile& tile, const EscapeMasks& masks, std::byte* out) {
  constexpr Division division = division_of(kind);
  using Value = ValueOf<kind>;
  // First where they are. A word takes four places, whether it has as many or not: processors foresee that, but not
  // when a loop over the bits of a word ends.
  constexpr std::size_t at_once = 4;
  std::uint16_t places[tile_values];
  std::size_t count = 0;
  for (std::size_t word = 0; word < masks.size(); ++word) {
    std::uint64_t mask = masks[word];
    const auto here = static_cast<std::size_t>(std::popcount(mask));
    for (std::size_t i = 0; i < at_once || i < here; ++i, mask &= mask - 1) {
      places[count + i] = static_cast<std::uint16_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(mask)));
    }
    count += here;
  }
  if (count > tile.exceptions_left) return false;
  for (std::size_t i = 0; i < count; ++i) {
    std::byte* const place = out + std::size_t{places[i]} * sizeof(Value);
    Value value;
    std::memcpy(&value, place, sizeof value);
    value = static_cast<Value>(value | ((tile.exceptions[i] & division.symbol_mask) << division.symbol_shift));
    std::memcpy(place, &value, sizeof value);
  }
  return true;
}

// Calls decode_tile<kind, code_bits> of a type, which is a copy of the loop for each of them.
template <typename Loops, Kind kind>
bool decode_kind(const StoredTile& tile, std::byte* out) {
  switch (tile.code_bits) {
    case 0:
      return Loops::template decode_tile<kind, 0>(tile, out);
    case 1:
      return Loops::template decode_tile<kind, 1>(tile, out);
    case 2:
      return Loops::template decode_tile<kind, 2>(tile, out);
    case 3:
      return Loops::template decode_tile<kind, 3>(tile, out);
    default:
      return Loops::template decode_tile<kind, 4>(tile, out);
  }
}
template <typename Loops>
bool decode_any(Kind kind, const StoredTile& tile, std::byte* out) {
  switch (kind) {
    case Kind::bf16:
      return decode_kind<Loops, Kind::bf16>(tile, out);
    case Kind::f16:
      return decode_kind<Loops, Kind::f16>(tile, out);
    case Kind::f32:
      return decode_kind<Loops, Kind::f32>(tile, out);
    case Kind::f8_e4m3:
      return decode_kind<Loops, Kind::f8_e4m3>(tile, out);
    case Kind::f8_e5m2:
      break;
  }
  return decode_kind<Loops, Kind::f8_e5m2>(tile, out);
}

}  // namespace penstock::packed
