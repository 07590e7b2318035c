// The kernels that were built in, as images for the driver.
#pragma once

#include <cstdint>

#include "cuda/relaxed.h"

namespace penstock::cuda {

// One copy of the scatter kernel. Addresses as the GPU sees them.
struct ScatterEntry {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
};

// Whether the build had nvcc, and its kernels run on such a GPU.
bool has_kernels_for(int compute_major, int compute_minor);

// `penstock_scatter(const ScatterEntry* entries, unsigned count)`, one block an entry. Null where there is none.
// REQUIRES: a current context, for whose life the kernel stays loaded.
CuFunction load_scatter(const RelaxedApi& api);
inline constexpr unsigned scatter_threads = 256;  // in a block

}  // namespace penstock::cuda
