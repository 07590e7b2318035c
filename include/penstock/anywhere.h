// What code needs that is compiled for the CPU, by nvcc, and by NVRTC, which has no standard library.
#pragma once

// A program for NVRTC that defines these names too must give them the same types.
#if defined(__CUDACC_RTC__)
namespace std {
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using int32_t = int;
using int64_t = long long;
using uintptr_t = unsigned long long;
}  // namespace std
#else
#include <cstddef>
#include <cstdint>
#endif

// APART: what happens rarely, so that its registers don't count for the rest of a kernel. Not in relocatable device
// code
// (-rdc=true): functions compiled apart take as many registers as they like there, and kernels with launch bounds could
// not call them.
#if defined(__CUDACC_RDC__)
#define PENSTOCK_ANYWHERE __host__ __device__
#define PENSTOCK_APART __host__ __device__ __forceinline__
#elif defined(__CUDACC__)
#define PENSTOCK_ANYWHERE __host__ __device__
#define PENSTOCK_APART __host__ __device__ __noinline__
#else
#define PENSTOCK_ANYWHERE
#define PENSTOCK_APART [[gnu::noinline]]
#endif
