// For x86_64 processors with AVX2: nothing here runs elsewhere.
#include <immintrin.h>

#include "services/packed/kernels_x86_64.h"

// Of functions that are called by others here: they become part of those.
#define PENSTOCK_AVX2 __attribute__((target("avx2,bmi,popcnt")))
#define PENSTOCK_AVX2_INLINE __attribute__((target("avx2,bmi,popcnt"), always_inline)) inline

namespace penstock::packed {
namespace {

using Vector = __m256i;

PENSTOCK_AVX2_INLINE Vector load(const void* from) {
  return _mm256_loadu_si256(static_cast<const Vector*>(from));
}

PENSTOCK_AVX2_INLINE void store_halves(void* first, void* second, Vector vector) {
  _mm_storeu_si128(static_cast<__m128i*>(first), _mm256_castsi256_si128(vector));
  _mm_storeu_si128(static_cast<__m128i*>(second), _mm256_extracti128_si256(vector, 1));
}

// 32 nibbles of a plane, a byte each.
PENSTOCK_AVX2_INLINE Vector nibbles(const std::uint8_t* plane, std::size_t place) {
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + place / 2));
  const Vector wide = _mm256_cvtepu8_epi16(half);
  return _mm256_and_si256(_mm256_or_si256(wide, _mm256_slli_epi16(wide, 4)), _mm256_set1_epi8(0x0f));
}

// Bit `from` of each byte, moved to bit `to`. No bit of a nibble gets there from a neighbouring byte.
template <int from, int to>
PENSTOCK_AVX2_INLINE Vector moved(Vector bytes) {
  const Vector at = from <= to ? _mm256_slli_epi16(bytes, to - from) : _mm256_srli_epi16(bytes, from - to);
  return _mm256_and_si256(at, _mm256_set1_epi8(static_cast<char>(1 << to)));
}

template <int code_bits, int k>
PENSTOCK_AVX2_INLINE Vector codes_of(const Vector* planes) {
  Vector code = _mm256_setzero_si256();
  if constexpr (code_bits > 0) code = moved<k, 0>(planes[0]);
  if constexpr (code_bits > 1) code = _mm256_or_si256(code, moved<k, 1>(planes[1]));
  if constexpr (code_bits > 2) code = _mm256_or_si256(code, moved<k, 2>(planes[2]));
  if constexpr (code_bits > 3) code = _mm256_or_si256(code, moved<k, 3>(planes[3]));
  return code;
}

PENSTOCK_AVX2_INLINE Vector both_halves(const std::uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
}

// ByteTables.
struct Tables {
  Vector first;
  Vector second;
};

template <Kind kind>
PENSTOCK_AVX2_INLINE Tables tables_of(const StoredTile& tile) {
  const ByteTables tables = byte_tables_of<kind>(tile);
  return {both_halves(tables.first.data()), both_halves(tables.second.data())};
}

// 32 values of one k.
template <Kind kind, int code_bits, int k>
PENSTOCK_AVX2_INLINE void decode_values(const StoredTile& tile, const Tables& tables, const Vector* planes,
                                        std::size_t place, std::uint32_t* escapes, std::byte* out) {
  const std::size_t value = std::size_t{256} * k + place;
  const Vector code = codes_of<code_bits, k>(planes);
  if constexpr (code_bits > 0) {
    const Vector is_escape = _mm256_cmpeq_epi8(code, _mm256_set1_epi8((1 << code_bits) - 1));
    escapes[value / 32] = static_cast<std::uint32_t>(_mm256_movemask_epi8(is_escape));
  }
  Vector high = _mm256_shuffle_epi8(tables.first, code);
  if constexpr (kind == Kind::f8_e4m3 || kind == Kind::f8_e5m2 || kind == Kind::f16) {
    constexpr int sign = kind == Kind::f8_e4m3 ? 3 : 2;
    high = _mm256_or_si256(high, moved<k, 0>(planes[code_bits]));
    high = _mm256_or_si256(high, moved<k, 1>(planes[code_bits + 1]));
    if constexpr (kind == Kind::f8_e4m3) high = _mm256_or_si256(high, moved<k, 2>(planes[code_bits + 2]));
    high = _mm256_or_si256(high, moved<k, 7>(planes[code_bits + sign]));
    if constexpr (kind != Kind::f16) {
      _mm256_storeu_si256(reinterpret_cast<Vector*>(out + value), high);
      return;
    }
  }
  Vector low = _mm256_setzero_si256();
  if constexpr (kind == Kind::f16) {
    low = load(tile.low + value);
  } else {
    const Vector rest = load(tile.bytes + value);
    const Vector sign = _mm256_set1_epi8(static_cast<char>(0x80));
    low = _mm256_or_si256(_mm256_andnot_si256(sign, rest), _mm256_shuffle_epi8(tables.second, code));
    high = _mm256_or_si256(_mm256_and_si256(sign, rest), high);
  }
  const Vector even = _mm256_unpacklo_epi8(low, high);  // values 0 to 7 and 16 to 23
  const Vector odd = _mm256_unpackhi_epi8(low, high);   // values 8 to 15 and 24 to 31
  if constexpr (kind != Kind::f32) {
    std::byte* const to = out + value * 2;
    store_halves(to, to + 32, even);
    store_halves(to + 16, to + 48, odd);
  } else {
    std::byte* const to = out + value * 4;
    const Vector halves[2] = {_mm256_permute2x128_si256(even, odd, 0x20), _mm256_permute2x128_si256(even, odd, 0x31)};
    for (std::size_t i = 0; i < 2; ++i) {
      const Vector below = load(tile.low + (value + 16 * i) * 2);
      const Vector first = _mm256_unpacklo_epi16(below, halves[i]);   // values 0 to 3 and 8 to 11
      const Vector second = _mm256_unpackhi_epi16(below, halves[i]);  // values 4 to 7 and 12 to 15
      store_halves(to + 64 * i, to + 64 * i + 32, first);
      store_halves(to + 64 * i + 16, to + 64 * i + 48, second);
    }
  }
}

template <Kind kind, int code_bits>
PENSTOCK_AVX2 bool decode_tile(const StoredTile& tile, std::byte* out) {
  constexpr int planes = code_bits + static_cast<int>(division_of(kind).raw_planes);
  const Tables tables = tables_of<kind>(tile);
  std::uint32_t escapes[tile_values / 32] = {};
  for (std::size_t place = 0; place < 256; place += 32) {
    Vector nibbles_of[planes + 1];
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

PENSTOCK_AVX2 std::uint64_t sum(const std::byte* tile, std::size_t bytes) {
  Vector sums[4] = {};
  for (std::size_t at = 0; at < bytes; at += 128) {
    for (std::size_t i = 0; i < 4; ++i) {
      const Vector words = _mm256_add_epi32(load(tile + at + 32 * i), load(&sum_keys[at / 4 + 8 * i]));
      sums[i] = _mm256_add_epi64(sums[i], _mm256_mul_epu32(words, _mm256_srli_epi64(words, 32)));
    }
  }
  std::uint64_t parts[4];
  const Vector all = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  _mm256_storeu_si256(reinterpret_cast<Vector*>(parts), all);
  return parts[0] + parts[1] + parts[2] + parts[3];
}

}  // namespace

PENSTOCK_AVX2 std::uint32_t encode_by_avx2(const std::uint8_t* symbols, const std::uint8_t* dictionary,
                                           std::uint32_t code_bits, std::uint8_t* codes, std::uint8_t* exceptions) {
  const int escape = (1 << code_bits) - 1;
  std::uint32_t count = 0;
  for (std::size_t value = 0; value < tile_values; value += 32) {
    const Vector symbol = load(symbols + value);
    Vector code = _mm256_set1_epi8(static_cast<char>(escape));
    // Where the dictionary has a symbol twice, the lower code wins.
    for (int c = escape - 1; c >= 0; --c) {
      const Vector is = _mm256_cmpeq_epi8(symbol, _mm256_set1_epi8(static_cast<char>(dictionary[c])));
      code = _mm256_blendv_epi8(code, _mm256_set1_epi8(static_cast<char>(c)), is);
    }
    _mm256_storeu_si256(reinterpret_cast<Vector*>(codes + value), code);
    const Vector is_escape = _mm256_cmpeq_epi8(code, _mm256_set1_epi8(static_cast<char>(escape)));
    for (auto mask = static_cast<std::uint32_t>(_mm256_movemask_epi8(is_escape)); mask != 0; mask &= mask - 1) {
      exceptions[count++] = symbols[value + static_cast<std::size_t>(std::countr_zero(mask))];
    }
  }
  return count;
}

PENSTOCK_AVX2 void to_planes_by_avx2(const std::uint8_t* bits, std::uint32_t planes, std::uint8_t* out) {
  const Vector pairs = _mm256_set1_epi16(0x1001);  // the lower nibble, and 16 times the higher
  for (std::size_t place = 0; place < 256; place += 32) {
    Vector values[4];
    for (std::size_t k = 0; k < 4; ++k) values[k] = load(bits + 256 * k + place);
    for (std::size_t plane = 0; plane < planes; ++plane) {
      Vector whole = _mm256_setzero_si256();
      for (int k = 3; k >= 0; --k) {
        const Vector bit = _mm256_and_si256(values[k], _mm256_set1_epi8(1));
        whole = _mm256_or_si256(_mm256_add_epi8(whole, whole), bit);
        values[k] = _mm256_and_si256(_mm256_srli_epi16(values[k], 1), _mm256_set1_epi8(0x7f));
      }
      const Vector bytes = _mm256_maddubs_epi16(whole, pairs);
      const Vector packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(bytes, bytes), 0x08);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + plane * plane_bytes + place / 2),
                       _mm256_castsi256_si128(packed));
    }
  }
}

PENSTOCK_AVX2 void copy_past_caches_by_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 32)
    _mm256_stream_si256(reinterpret_cast<Vector*>(to + at), load(from + at));
}

constinit const Kernels avx2_kernels = {
    "avx2",          &has_avx2,          &decode_any<Loops>,        &sum,
    &encode_by_avx2, &to_planes_by_avx2, &copy_past_caches_by_avx2, [] { _mm_sfence(); }};

}  // namespace penstock::packed
