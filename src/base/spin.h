// Waiting for a moment without a system call.
#pragma once

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace penstock {

// In a loop that waits for another processor: leaves it the memory bus, and a sibling thread the core.
inline void relax_processor() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // "yield" does nothing on most cores
#endif
}

}  // namespace penstock
