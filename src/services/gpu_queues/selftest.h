// What a self-test tells its kernels. Shared with selftest_kernels.cu.
#pragma once

#include "penstock/anywhere.h"

namespace penstock::gpu_queues {

struct SelftestJob {
  static constexpr std::uint64_t block_bytes = 512;

  std::uint64_t handle = 0;    // of the set of queues, or of the array
  std::uint64_t memory = 0;    // where the bytes go
  std::uint64_t failures = 0;  // two words: how many, and an IoStatus
  std::uint64_t count = 0;     // of threads, or bytes of the layer
  std::uint64_t places = 0;    // blocks or elements of the store
  std::uint64_t share_bytes = 0;

  // Which of them thread number i reads: spread over all.
  PENSTOCK_ANYWHERE std::uint64_t place(std::uint64_t i) const { return i * 0x9e3779b97f4a7c15ULL % places; }
};

}  // namespace penstock::gpu_queues
