// For aarch64, every processor of which has NEON.
#include <arm_neon.h>

#include "services/packed/kernels.h"

#define PENSTOCK_INLINE __attribute__((always_inline)) inline

namespace penstock::packed {
namespace {

// 16 nibbles of a plane, a byte each.
PENSTOCK_INLINE uint8x16_t nibbles(const std::uint8_t* plane, std::size_t place) {
  const uint8x8_t half = vld1_u8(plane + place / 2);
  const uint8x8x2_t both = vzip_u8(vand_u8(half, vdup_n_u8(0x0f)), vshr_n_u8(half, 4));
  return vcombine_u8(both.val[0], both.val[1]);
}

// Bit `from` of each byte, moved to bit `to`.
template <int from, int to>
PENSTOCK_INLINE uint8x16_t moved(uint8x16_t bytes) {
  const uint8x16_t at = vshlq_u8(bytes, vdupq_n_s8(to - from));
  return vandq_u8(at, vdupq_n_u8(static_cast<std::uint8_t>(1 << to)));
}

template <int code_bits, int k>
PENSTOCK_INLINE uint8x16_t codes_of(const uint8x16_t* planes) {
  uint8x16_t code = vdupq_n_u8(0);
  if constexpr (code_bits > 0) code = moved<k, 0>(planes[0]);
  if constexpr (code_bits > 1) code = vorrq_u8(code, moved<k, 1>(planes[1]));
  if constexpr (code_bits > 2) code = vorrq_u8(code, moved<k, 2>(planes[2]));
  if constexpr (code_bits > 3) code = vorrq_u8(code, moved<k, 3>(planes[3]));
  return code;
}

// A bit for each byte that is all ones.
PENSTOCK_INLINE std::uint16_t mask_of(uint8x16_t bytes) {
  static constexpr std::uint8_t weights[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t bits = vandq_u8(bytes, vld1q_u8(weights));
  return static_cast<std::uint16_t>(vaddv_u8(vget_low_u8(bits)) | vaddv_u8(vget_high_u8(bits)) << 8);
}

// ByteTables.
struct Tables {
  uint8x16_t first;
  uint8x16_t second;
};

template <Kind kind>
PENSTOCK_INLINE Tables tables_of(const StoredTile& tile) {
  const ByteTables tables = byte_tables_of<kind>(tile);
  return {vld1q_u8(tables.first.data()), vld1q_u8(tables.second.data())};
}

// 16 values of one k.
template <Kind kind, int code_bits, int k>
PENSTOCK_INLINE void decode_values(const StoredTile& tile, const Tables& tables, const uint8x16_t* planes,
                                   std::size_t place, std::uint16_t* escapes, std::byte* out) {
  const std::size_t value = std::size_t{256} * k + place;
  const uint8x16_t code = codes_of<code_bits, k>(planes);
  if constexpr (code_bits > 0) escapes[value / 16] = mask_of(vceqq_u8(code, vdupq_n_u8((1 << code_bits) - 1)));
  auto* const to = reinterpret_cast<std::uint8_t*>(out) + value * division_of(kind).value_bytes;
  uint8x16_t high = vqtbl1q_u8(tables.first, code);
  uint8x16_t low = vdupq_n_u8(0);
  if constexpr (division_of(kind).byte_bytes == 0) {
    constexpr int sign = kind == Kind::f8_e4m3 ? 3 : 2;
    high = vorrq_u8(high, moved<k, 0>(planes[code_bits]));
    high = vorrq_u8(high, moved<k, 1>(planes[code_bits + 1]));
    if constexpr (kind == Kind::f8_e4m3) high = vorrq_u8(high, moved<k, 2>(planes[code_bits + 2]));
    high = vorrq_u8(high, moved<k, 7>(planes[code_bits + sign]));
    if constexpr (kind == Kind::f16) low = vld1q_u8(tile.low + value);
  } else {
    const uint8x16_t rest = vld1q_u8(tile.bytes + value);
    low = vorrq_u8(vandq_u8(rest, vdupq_n_u8(0x7f)), vqtbl1q_u8(tables.second, code));
    high = vorrq_u8(vandq_u8(rest, vdupq_n_u8(0x80)), high);
  }
  if constexpr (division_of(kind).value_bytes == 1) vst1q_u8(to, high);
  if constexpr (division_of(kind).value_bytes == 2) vst2q_u8(to, (uint8x16x2_t{{low, high}}));  // a macro, for clang
  if constexpr (kind == Kind::f32) {
    const uint8x16x2_t below = vld2q_u8(tile.low + value * 2);
    vst4q_u8(to, (uint8x16x4_t{{below.val[0], below.val[1], low, high}}));
  }
}

template <Kind kind, int code_bits>
bool decode_tile(const StoredTile& tile, std::byte* out) {
  constexpr int planes = code_bits + static_cast<int>(division_of(kind).raw_planes);
  const Tables tables = tables_of<kind>(tile);
  std::uint16_t escapes[tile_values / 16] = {};
  for (std::size_t place = 0; place < 256; place += 16) {
    uint8x16_t nibbles_of[planes + 1];
    for (int plane = 0; plane < planes; ++plane) {
      nibbles_of[plane] = nibbles(tile.planes + std::size_t{plane_bytes} * static_cast<std::size_t>(plane), place);
    }
    decode_values<kind, code_bits, 0>(tile, tables, nibbles_of, place, escapes, out);
    decode_values<kind, code_bits, 1>(tile, tables, nibbles_of, place, escapes, out);
    decode_values<kind, code_bits, 2>(tile, tables, nibbles_of, place, escapes, out);
    decode_values<kind, code_bits, 3>(tile, tables, nibbles_of, place, escapes, out);
  }
  if constexpr (code_bits == 0) return true;
  EscapeMasks masks;
  std::memcpy(masks.data(), escapes, sizeof masks);
  return patch<kind>(tile, masks, out);
}

struct Loops {
  template <Kind kind, int code_bits>
  static bool decode_tile(const StoredTile& tile, std::byte* out) {
    return packed::decode_tile<kind, code_bits>(tile, out);
  }
};

std::uint64_t sum(const std::byte* tile, std::size_t bytes) {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(tile);
  uint64x2_t sums[2] = {vdupq_n_u64(0), vdupq_n_u64(0)};
  for (std::size_t at = 0; at < bytes; at += 32) {
    const uint32x4_t first = vaddq_u32(vreinterpretq_u32_u8(vld1q_u8(from + at)), vld1q_u32(&sum_keys[at / 4]));
    const uint32x4_t second =
        vaddq_u32(vreinterpretq_u32_u8(vld1q_u8(from + at + 16)), vld1q_u32(&sum_keys[at / 4 + 4]));
    const uint32x4_t even = vuzp1q_u32(first, second);
    const uint32x4_t odd = vuzp2q_u32(first, second);
    sums[0] = vmlal_u32(sums[0], vget_low_u32(even), vget_low_u32(odd));
    sums[1] = vmlal_high_u32(sums[1], even, odd);
  }
  return vaddvq_u64(vaddq_u64(sums[0], sums[1]));
}

std::uint32_t encode(const std::uint8_t* symbols, const std::uint8_t* dictionary, std::uint32_t code_bits,
                     std::uint8_t* codes, std::uint8_t* exceptions) {
  const int escape = (1 << code_bits) - 1;
  std::uint32_t count = 0;
  for (std::size_t value = 0; value < tile_values; value += 16) {
    const uint8x16_t symbol = vld1q_u8(symbols + value);
    uint8x16_t code = vdupq_n_u8(static_cast<std::uint8_t>(escape));
    // Where the dictionary has a symbol twice, the lower code wins.
    for (int c = escape - 1; c >= 0; --c) {
      code = vbslq_u8(vceqq_u8(symbol, vdupq_n_u8(dictionary[c])), vdupq_n_u8(static_cast<std::uint8_t>(c)), code);
    }
    vst1q_u8(codes + value, code);
    std::uint32_t mask = mask_of(vceqq_u8(code, vdupq_n_u8(static_cast<std::uint8_t>(escape))));
    for (; mask != 0; mask &= mask - 1) {
      exceptions[count++] = symbols[value + static_cast<std::size_t>(std::countr_zero(mask))];
    }
  }
  return count;
}

void to_planes(const std::uint8_t* bits, std::uint32_t planes, std::uint8_t* out) {
  for (std::size_t place = 0; place < 256; place += 16) {
    uint8x16_t values[4];
    for (std::size_t k = 0; k < 4; ++k) values[k] = vld1q_u8(bits + 256 * k + place);
    for (std::size_t plane = 0; plane < planes; ++plane) {
      uint8x16_t whole = vdupq_n_u8(0);
      for (int k = 3; k >= 0; --k) {
        whole = vorrq_u8(vaddq_u8(whole, whole), vandq_u8(values[k], vdupq_n_u8(1)));
        values[k] = vshrq_n_u8(values[k], 1);
      }
      // Pairs of bytes become one: the even ones are the lower nibbles.
      const uint8x16_t pairs = vorrq_u8(vuzp1q_u8(whole, whole), vshlq_n_u8(vuzp2q_u8(whole, whole), 4));
      vst1_u8(out + plane * plane_bytes + place / 2, vget_low_u8(pairs));
    }
  }
}

void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

constexpr Kernels neon_kernels = {"neon", [] { return true; }, &decode_any<Loops>, &sum, &encode, &to_planes, &copy,
                                  [] {}};
constexpr const Kernels* all[] = {&neon_kernels};

}  // namespace

std::span<const Kernels* const> fast_kernels() {
  return all;
}

}  // namespace penstock::packed
