#include "services/packed/kernels.h"

namespace penstock::packed {
namespace {

template <Kind kind>
bool decode_as(const StoredTile& tile, std::byte* out) {
  constexpr Division division = division_of(kind);
  const std::uint32_t escape = (1U << tile.code_bits) - 1;
  std::uint32_t symbols[dictionary_size];
  for (std::uint32_t code = 0; code < dictionary_size; ++code) {
    symbols[code] = (tile.dictionary[code] & division.symbol_mask) << division.symbol_shift;
  }
  if (tile.code_bits != 0) symbols[escape] = 0;
  EscapeMasks escapes{};
  for (std::uint32_t value = 0; value < tile_values; ++value) {
    const std::uint32_t place = value % 256;
    const std::uint32_t shift = place % 2 * 4 + value / 256;
    const auto bit = [&](std::uint32_t plane) {
      return static_cast<std::uint32_t>(tile.planes[plane * plane_bytes + place / 2] >> shift & 1);
    };
    std::uint32_t code = 0;
    for (std::uint32_t plane = 0; plane < tile.code_bits; ++plane) code |= bit(plane) << plane;
    if (tile.code_bits != 0 && code == escape) escapes[value / 64] |= std::uint64_t{1} << (value % 64);
    std::uint32_t whole = symbols[code];
    for (std::uint32_t raw = 0; raw < division.raw_planes; ++raw) {
      whole |= bit(tile.code_bits + raw) << division.raw_bits[raw];
    }
    if (division.byte_bytes != 0) {
      // Sign and mantissa, on both sides of the exponent.
      const std::uint32_t byte = tile.bytes[value];
      whole |= (byte & 0x80) << (division.symbol_shift + 1) | (byte & 0x7f) << (division.symbol_shift - 7);
    }
    if (division.low_bytes == 1) whole |= tile.low[value];
    if (division.low_bytes == 2) {
      whole |= static_cast<std::uint32_t>(tile.low[2 * value] | tile.low[2 * value + 1] << 8);
    }
    const auto as_value = static_cast<ValueOf<kind>>(whole);
    std::memcpy(out + std::size_t{value} * sizeof as_value, &as_value, sizeof as_value);
  }
  return patch<kind>(tile, escapes, out);
}

bool decode(Kind kind, const StoredTile& tile, std::byte* out) {
  switch (kind) {
    case Kind::bf16:
      return decode_as<Kind::bf16>(tile, out);
    case Kind::f16:
      return decode_as<Kind::f16>(tile, out);
    case Kind::f32:
      return decode_as<Kind::f32>(tile, out);
    case Kind::f8_e4m3:
      return decode_as<Kind::f8_e4m3>(tile, out);
    case Kind::f8_e5m2:
      break;
  }
  return decode_as<Kind::f8_e5m2>(tile, out);
}

std::uint64_t sum(const std::byte* tile, std::size_t bytes) {
  std::uint64_t total = 0;
  for (std::size_t word = 0; word < bytes / 4; word += 2) {
    std::uint32_t pair[2];
    std::memcpy(pair, tile + word * 4, sizeof pair);
    total += std::uint64_t{pair[0] + sum_keys[word]} * std::uint64_t{pair[1] + sum_keys[word + 1]};
  }
  return total;
}

std::uint32_t encode(const std::uint8_t* symbols, const std::uint8_t* dictionary, std::uint32_t code_bits,
                     std::uint8_t* codes, std::uint8_t* exceptions) {
  const std::uint32_t escape = (1U << code_bits) - 1;
  std::uint8_t code_of[256];
  std::memset(code_of, static_cast<int>(escape), sizeof code_of);
  for (std::uint32_t code = escape; code-- > 0;) code_of[dictionary[code]] = static_cast<std::uint8_t>(code);
  std::uint32_t count = 0;
  for (std::uint32_t value = 0; value < tile_values; ++value) {
    codes[value] = code_of[symbols[value]];
    if (codes[value] == escape) exceptions[count++] = symbols[value];
  }
  return count;
}

void to_planes(const std::uint8_t* bits, std::uint32_t planes, std::uint8_t* out) {
  for (std::uint32_t plane = 0; plane < planes; ++plane) {
    for (std::uint32_t byte = 0; byte < plane_bytes; ++byte) {
      std::uint32_t whole = 0;
      for (std::uint32_t k = 0; k < 4; ++k) {
        whole |= static_cast<std::uint32_t>(bits[256 * k + 2 * byte] >> plane & 1) << k;
        whole |= static_cast<std::uint32_t>(bits[256 * k + 2 * byte + 1] >> plane & 1) << (k + 4);
      }
      out[plane * plane_bytes + byte] = static_cast<std::uint8_t>(whole);
    }
  }
}

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace

constinit const Kernels portable_kernels = {"portable", [] { return true; }, &decode, &sum,
                                            &encode,    &to_planes,          &copy,   [] {}};

}  // namespace penstock::packed
