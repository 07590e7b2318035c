// Values for tests of packing: as weights are, and as nobody would store them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "services/packed/format.h"

namespace penstock::packed {

enum class Pattern : std::uint8_t {
  normal,
  equal,
  different,
  alternating,
  not_numbers,
  zeros,
  random,
  one_in_each_tile
};
inline constexpr std::array patterns = {Pattern::normal,      Pattern::equal,           Pattern::different,
                                        Pattern::alternating, Pattern::not_numbers,     Pattern::zeros,
                                        Pattern::random,      Pattern::one_in_each_tile};

// A number in the format of the kind, cut off where it has more bits.
inline std::uint32_t to_kind(Kind kind, float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t sign = bits >> 31;
  const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127;
  const auto small = [&](int exponent_bits, int mantissa_bits) {
    const int most = (1 << exponent_bits) - 1;
    const int biased = std::clamp(exponent + most / 2, 0, most);
    return sign << (exponent_bits + mantissa_bits) | static_cast<std::uint32_t>(biased) << mantissa_bits |
           (bits >> (23 - mantissa_bits) & ((1U << mantissa_bits) - 1));
  };
  switch (kind) {
    case Kind::bf16:
      return bits >> 16;
    case Kind::f16:
      return small(5, 10);
    case Kind::f32:
      return bits;
    case Kind::f8_e4m3:
      return small(4, 3);
    case Kind::f8_e5m2:
      break;
  }
  return small(5, 2);
}

inline std::vector<std::byte> make_values(Kind kind, Pattern pattern, std::size_t count, std::uint64_t seed) {
  const Division division = division_of(kind);
  std::mt19937_64 random(seed);
  // Of the smallest type, weights are scaled to what it can tell apart.
  std::normal_distribution<float> normal(0, kind == Kind::f8_e4m3 ? 1.0F : 0.02F);
  std::vector<std::byte> bytes(count * division.value_bytes);
  const std::uint32_t exponent_mask = division.symbol_mask << division.symbol_shift;
  for (std::size_t i = 0; i < count; ++i) {
    const auto noise = static_cast<std::uint32_t>(random());
    const auto with_exponent = [&](std::uint64_t exponent) {
      return (noise & ~exponent_mask) | (static_cast<std::uint32_t>(exponent) << division.symbol_shift & exponent_mask);
    };
    std::uint32_t value = 0;
    switch (pattern) {
      case Pattern::normal:
        value = to_kind(kind, normal(random));
        break;
      case Pattern::equal:
        value = with_exponent(seed);
        break;
      case Pattern::different:
        value = with_exponent(i);
        break;
      case Pattern::alternating:
        value = with_exponent(i % 2 == 0 ? 0 : UINT32_MAX);
        break;
      case Pattern::not_numbers:  // every payload, of both signs
        value = static_cast<std::uint32_t>(i * 0x10001) | exponent_mask;
        break;
      case Pattern::zeros:
        value = i % 7 == 0 ? 1U << (8 * division.value_bytes - 1) : 0;  // of both signs
        break;
      case Pattern::random:
        value = noise;
        break;
      case Pattern::one_in_each_tile:
        value = with_exponent(i % tile_values == seed % tile_values ? 1 : 2);
        break;
    }
    std::memcpy(bytes.data() + i * division.value_bytes, &value, division.value_bytes);
  }
  return bytes;
}

}  // namespace penstock::packed
