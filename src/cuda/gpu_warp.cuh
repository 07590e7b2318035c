// GpuWarp: the warp of unpack.h on a GPU. A lane is a thread, and a Word its own number.
//
// REQUIRES: all 32 threads of the warp are there.
#pragma once

#include <cstdint>

#include "cuda/unpack.h"

namespace penstock::cuda {

struct GpuWarp {
  using Word = std::uint32_t;
  using Long = std::uint64_t;
  using Flag = bool;
  static constexpr std::uint32_t all = ~0U;

  __device__ static Word lane() { return threadIdx.x % lane_count; }
  __device__ static bool any(Flag flag) { return __any_sync(all, flag) != 0; }
  __device__ static Word choose(Flag flag, Word yes, Word no) { return flag ? yes : no; }
  // By each nibble of the lowest four: a byte of the eight.
  __device__ static Word bytes_by(Word first, Word second, Word nibbles_of) {
    return __byte_perm(first, second, nibbles_of);
  }
  __device__ static Word ones(Word word) { return __popc(word); }
  __device__ static Word lowest(Word word) { return __ffs(static_cast<int>(word)) - 1; }
  __device__ static std::uint32_t of_lane(Word word, std::uint32_t lane) { return __shfl_sync(all, word, lane); }
  // Of the lanes before this one.
  __device__ static Word sum_before(Word word) {
    Word sum = __shfl_up_sync(all, word, 1);
    if (lane() == 0) sum = 0;
#pragma unroll
    for (std::uint32_t distance = 1; distance < lane_count; distance *= 2) {
      const Word other = __shfl_up_sync(all, sum, distance);
      if (lane() >= distance) sum += other;
    }
    return sum;
  }
  __device__ static std::uint64_t sum(Long word) {
#pragma unroll
    for (std::uint32_t distance = lane_count / 2; distance > 0; distance /= 2) {
      word += __shfl_xor_sync(all, static_cast<unsigned long long>(word), distance);
    }
    return word;
  }
  __device__ static Long multiply_add(Word a, Word b, Long c) { return std::uint64_t{a} * b + c; }

  __device__ static ChunkHeader header(const std::uint8_t* from) {
    union {
      uint4 parts[sizeof(ChunkHeader) / sizeof(uint4)];
      ChunkHeader header;
    };
#pragma unroll
    for (std::size_t i = 0; i < sizeof(ChunkHeader) / sizeof(uint4); ++i) {
      parts[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    }
    return header;
  }
  __device__ static std::uint32_t load_16(const std::uint8_t* from) {
    return __ldg(reinterpret_cast<const unsigned short*>(from));
  }
  __device__ static Word load_8_if(Flag flag, const std::uint8_t* from, Word at) { return flag ? __ldg(from + at) : 0; }
  __device__ static Word load(const std::uint8_t* from, Word at) {
    return __ldg(reinterpret_cast<const std::uint32_t*>(from + at));
  }
  template <int count>
  __device__ static void load(const std::uint8_t* from, Word at, Word* words) {
    static_assert(count == 2 || count % 4 == 0);
    if constexpr (count == 2) {
      const uint2 two = __ldg(reinterpret_cast<const uint2*>(from + at));
      words[0] = two.x;
      words[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < count; i += 4) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(from + at) + i / 4);
        words[i] = four.x;
        words[i + 1] = four.y;
        words[i + 2] = four.z;
        words[i + 3] = four.w;
      }
    }
  }
  // Of the checksum, in the block's shared memory. REQUIRES: fill_keys by all threads of the block, and a barrier.
  __device__ static std::uint32_t* keys() {
    __shared__ std::uint32_t words alignas(16)[ChecksumKeys::count];
    return words;
  }
  __device__ static void fill_keys() {
    for (std::uint32_t i = threadIdx.x; i < ChecksumKeys::count; i += blockDim.x) keys()[i] = ChecksumKeys::key(i);
  }
  // Loaded each time: kept in registers over all tiles they would leave none for the rest.
  template <int count>
  __device__ static void load_keys(Word at, Word* words) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(keys())) + at;
    if constexpr (count == 2) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address));
    } else {
#pragma unroll
      for (int i = 0; i < count; i += 4) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                     : "r"(address + 4 * i));
      }
    }
  }
  template <int count>
  __device__ static void load_if(Flag flag, const std::uint8_t* from, Word at, Word* words) {
#pragma unroll
    for (int i = 0; i < count; ++i) words[i] = 0;
    if (flag) load<count>(from, at, words);
  }
  // Ordinary stores, to what is known to be global memory.
  template <int count>
  __device__ static void store(std::uint64_t to, Word at, const Word* words) {
    if constexpr (count == 2) {
      __stwb(reinterpret_cast<uint2*>(to + at), make_uint2(words[0], words[1]));
    } else {
#pragma unroll
      for (int i = 0; i < count; i += 4) {
        __stwb(reinterpret_cast<uint4*>(to + at) + i / 4,
               make_uint4(words[i], words[i + 1], words[i + 2], words[i + 3]));
      }
    }
  }
  template <std::uint32_t bytes>
  __device__ static void store_value_if(Flag flag, std::uint64_t to, Word at, Word value) {
    if (!flag) return;
    if constexpr (bytes == 4) __stwb(reinterpret_cast<std::uint32_t*>(to + at), value);
    if constexpr (bytes == 2) __stwb(reinterpret_cast<unsigned short*>(to + at), static_cast<unsigned short>(value));
    if constexpr (bytes == 1) __stwb(reinterpret_cast<unsigned char*>(to + at), static_cast<unsigned char>(value));
  }
};

}  // namespace penstock::cuda
