#include "services/packed/kernels_x86_64.h"

#include <cpuid.h>

namespace penstock::packed {
namespace {

constexpr const Kernels* all[] = {&avx512_kernels, &avx2_kernels};

// Asked of the processor: not every compiler's library has what __builtin_cpu_supports looks at.
struct Processor {
  Processor() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return;
    counts_bits = (c & bit_POPCNT) != 0;
    asm("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    seven_b = b;
    seven_c = c;
  }
  bool counts_bits = false;
  unsigned saved = 0;  // kinds of registers, by the system
  unsigned seven_b = 0;
  unsigned seven_c = 0;
};

bool has_all(unsigned bits, unsigned wanted) {
  return (bits & wanted) == wanted;
}

}  // namespace

bool has_avx2() {
  constexpr unsigned of_xmm_and_ymm = 0x06;
  const Processor processor;
  return processor.counts_bits && has_all(processor.saved, of_xmm_and_ymm) &&
         has_all(processor.seven_b, bit_AVX2 | bit_BMI);
}

bool has_avx512() {
  constexpr unsigned of_masks_and_zmm = 0xE0;
  const Processor processor;
  return has_avx2() && has_all(processor.saved, of_masks_and_zmm) &&
         has_all(processor.seven_b, bit_AVX512F | bit_AVX512BW | bit_AVX512VL) &&
         has_all(processor.seven_c, bit_AVX512VBMI2);
}

std::span<const Kernels* const> fast_kernels() {
  return all;
}

}  // namespace penstock::packed
