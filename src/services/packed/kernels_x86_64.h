// The loops of packing for x86_64, and those of AVX2 that processors with AVX-512 use too.
//
// Thread safety: pure functions.
#pragma once

#include "services/packed/kernels.h"

namespace penstock::packed {

// What the kernels need of the processor, and of the system, which must save its registers.
bool has_avx2();
bool has_avx512();

extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;

// As in Kernels.
std::uint32_t encode_by_avx2(const std::uint8_t* symbols, const std::uint8_t* dictionary, std::uint32_t code_bits,
                             std::uint8_t* codes, std::uint8_t* exceptions);
void to_planes_by_avx2(const std::uint8_t* bits, std::uint32_t planes, std::uint8_t* out);
void copy_past_caches_by_avx2(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace penstock::packed
