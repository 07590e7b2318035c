// For x86_64 processors with AVX-512 and its second set of byte instructions (VBMI2, Ice Lake and Zen 4 onwards), which
// put exceptions into their places while they are in registers: nothing here runs elsewhere.
#include <immintrin.h>

#include <iterator>
#include <numeric>

#include "services/packed/kernels_x86_64.h"

// Of functions that are called by others here: they become part of those.
#define PENSTOCK_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,bmi,popcnt")))
#define PENSTOCK_AVX512_INLINE \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,bmi,popcnt"), always_inline)) inline

namespace penstock::packed {
namespace {

using Vector = __m512i;

// What an instruction of any three inputs does: (a & b) | c.
constexpr int and_or = 0xea;

PENSTOCK_AVX512_INLINE Vector load(const void* from) {
  return _mm512_loadu_si512(from);
}

PENSTOCK_AVX512_INLINE __m256i load_half(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

PENSTOCK_AVX512_INLINE void store(std::byte* to, Vector vector) {
  _mm512_storeu_si512(to, vector);
}

template <int half>
PENSTOCK_AVX512_INLINE __m256i half_of(Vector vector) {
  return _mm512_extracti64x4_epi64(vector, half);
}

// 64 nibbles of a plane, a byte each. The upper half of a byte has anything.
PENSTOCK_AVX512_INLINE Vector nibbles(const std::uint8_t* plane, std::size_t place) {
  const Vector wide = _mm512_cvtepu8_epi16(load_half(plane + place / 2));
  return _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
}

// Bit `from` of each nibble, at bit `to` of a byte, beside what is there.
template <int from, int to>
PENSTOCK_AVX512_INLINE Vector with_bit(Vector bytes, Vector nibbles) {
  Vector at = nibbles;
  if constexpr (from < to) at = _mm512_slli_epi16(nibbles, to - from);
  if constexpr (from > to) at = _mm512_srli_epi16(nibbles, from - to);
  return _mm512_ternarylogic_epi64(at, _mm512_set1_epi8(static_cast<char>(1 << to)), bytes, and_or);
}

// The higher two bytes of 32 values of BF16 or F32, from symbols and what is beside them.
PENSTOCK_AVX512_INLINE Vector joined(__m256i symbols, __m256i rest) {
  const Vector symbol = _mm512_slli_epi16(_mm512_cvtepu8_epi16(symbols), 7);
  const Vector sign_and_mantissa = _mm512_set1_epi16(static_cast<short>(0x807f));
  return _mm512_ternarylogic_epi64(_mm512_cvtepi8_epi16(rest), sign_and_mantissa, symbol, and_or);
}

// 32 values, from their higher and lower bytes.
PENSTOCK_AVX512_INLINE Vector joined_bytes(__m256i high, __m256i low) {
  return _mm512_or_si512(_mm512_slli_epi16(_mm512_cvtepu8_epi16(high), 8), _mm512_cvtepu8_epi16(low));
}
// 16 values, from their higher and lower halves.
PENSTOCK_AVX512_INLINE Vector joined_words(__m256i high, __m256i low) {
  return _mm512_or_si512(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16), _mm512_cvtepu16_epi32(low));
}

// 64 values of one k, the planes of which are given.
template <Kind kind, int code_bits, int k>
PENSTOCK_AVX512_INLINE bool decode_values(StoredTile& tile, const Vector* planes, std::size_t place, std::byte* out) {
  constexpr Division division = division_of(kind);
  const std::size_t value = std::size_t{256} * k + place;
  out += value * division.value_bytes;
  Vector code = _mm512_setzero_si512();
  if constexpr (code_bits > 0) code = with_bit<k, 0>(code, planes[0]);
  if constexpr (code_bits > 1) code = with_bit<k, 1>(code, planes[1]);
  if constexpr (code_bits > 2) code = with_bit<k, 2>(code, planes[2]);
  if constexpr (code_bits > 3) code = with_bit<k, 3>(code, planes[3]);
  const __m128i dictionary = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tile.dictionary));
  Vector symbol = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(dictionary), code);
  if constexpr (code_bits > 0) {
    const __mmask64 is_escape = _mm512_cmpeq_epi8_mask(code, _mm512_set1_epi8((1 << code_bits) - 1));
    const auto escapes = static_cast<std::uint32_t>(std::popcount(static_cast<std::uint64_t>(is_escape)));
    if (escapes > tile.exceptions_left) return false;
    // Reads as many bytes as the mask has ones.
    symbol = _mm512_mask_expandloadu_epi8(symbol, is_escape, tile.exceptions);
    tile.exceptions += escapes;
    tile.exceptions_left -= escapes;
  }
  if constexpr (division.byte_bytes != 0) {
    const Vector first = joined(half_of<0>(symbol), load_half(tile.bytes + value));
    const Vector second = joined(half_of<1>(symbol), load_half(tile.bytes + value + 32));
    if constexpr (kind == Kind::bf16) {
      store(out, first);
      store(out + 64, second);
    } else {
      const std::uint8_t* const low = tile.low + value * 2;
      store(out, joined_words(half_of<0>(first), load_half(low)));
      store(out + 64, joined_words(half_of<1>(first), load_half(low + 32)));
      store(out + 128, joined_words(half_of<0>(second), load_half(low + 64)));
      store(out + 192, joined_words(half_of<1>(second), load_half(low + 96)));
    }
  } else {
    constexpr int shift = kind == Kind::f8_e4m3 ? 3 : 2;  // of the exponent, in the byte that has it
    const Vector exponent = _mm512_and_si512(symbol, _mm512_set1_epi8(static_cast<char>(division.symbol_mask)));
    Vector high = _mm512_slli_epi16(exponent, shift);
    high = with_bit<k, 0>(high, planes[code_bits]);
    high = with_bit<k, 1>(high, planes[code_bits + 1]);
    if constexpr (kind == Kind::f8_e4m3) high = with_bit<k, 2>(high, planes[code_bits + 2]);
    high = with_bit<k, 7>(high, planes[code_bits + shift]);
    if constexpr (kind == Kind::f16) {
      store(out, joined_bytes(half_of<0>(high), load_half(tile.low + value)));
      store(out + 64, joined_bytes(half_of<1>(high), load_half(tile.low + value + 32)));
    } else {
      store(out, high);
    }
  }
  return true;
}

// 256 values of one k: exceptions are in the order of values, so all of a k come before those of the next.
template <Kind kind, int code_bits, int k, std::size_t planes>
PENSTOCK_AVX512_INLINE bool decode_quarter(StoredTile& tile, const Vector (&nibbles_of)[4][planes], std::byte* out) {
  return decode_values<kind, code_bits, k>(tile, nibbles_of[0], 0, out) &&
         decode_values<kind, code_bits, k>(tile, nibbles_of[1], 64, out) &&
         decode_values<kind, code_bits, k>(tile, nibbles_of[2], 128, out) &&
         decode_values<kind, code_bits, k>(tile, nibbles_of[3], 192, out);
}

template <Kind kind, int code_bits>
PENSTOCK_AVX512 bool decode_tile(const StoredTile& stored, std::byte* out) {
  constexpr std::size_t planes = code_bits + division_of(kind).raw_planes;
  Vector nibbles_of[4][planes + 1];
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t plane = 0; plane < planes; ++plane) {
      nibbles_of[i][plane] = nibbles(stored.planes + plane_bytes * plane, 64 * i);
    }
  }
  StoredTile tile = stored;
  return decode_quarter<kind, code_bits, 0>(tile, nibbles_of, out) &&
         decode_quarter<kind, code_bits, 1>(tile, nibbles_of, out) &&
         decode_quarter<kind, code_bits, 2>(tile, nibbles_of, out) &&
         decode_quarter<kind, code_bits, 3>(tile, nibbles_of, out);
}

struct Loops {
  template <Kind kind, int code_bits>
  static bool decode_tile(const StoredTile& tile, std::byte* out) {
    return packed::decode_tile<kind, code_bits>(tile, out);
  }
};

PENSTOCK_AVX512 std::uint64_t sum(const std::byte* tile, std::size_t bytes) {
  Vector sums[4] = {};
  for (std::size_t at = 0; at < bytes; at += 256) {
    for (std::size_t i = 0; i < 4; ++i) {
      const Vector words = _mm512_add_epi32(load(tile + at + 64 * i), load(&sum_keys[at / 4 + 16 * i]));
      sums[i] = _mm512_add_epi64(sums[i], _mm512_mul_epu32(words, _mm512_srli_epi64(words, 32)));
    }
  }
  const Vector all = _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
  // Not _mm512_reduce_add_epi64: GCC 12 adds signed integers there, which overflow.
  std::uint64_t parts[8];
  store(reinterpret_cast<std::byte*>(parts), all);
  return std::accumulate(std::begin(parts), std::end(parts), std::uint64_t{0});
}

}  // namespace

constinit const Kernels avx512_kernels = {
    "avx512",        &has_avx512,        &decode_any<Loops>,        &sum,
    &encode_by_avx2, &to_planes_by_avx2, &copy_past_caches_by_avx2, [] { _mm_sfence(); }};

}  // namespace penstock::packed
