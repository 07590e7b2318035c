#include "cuda/kernels.h"

#include <string>

#include "base/log.h"

namespace penstock::cuda {

namespace {

#if PENSTOCK_HAS_KERNELS
// A fat binary, put here by the assembler (kernels.cmake).
extern "C" const unsigned char penstock_kernels_image[];
constexpr int oldest_compute = 75;
#endif

}  // namespace

bool has_kernels_for([[maybe_unused]] int compute_major, [[maybe_unused]] int compute_minor) {
#if PENSTOCK_HAS_KERNELS
  return compute_major * 10 + compute_minor >= oldest_compute;
#else
  return false;
#endif
}

CuFunction load_scatter([[maybe_unused]] const RelaxedApi& api) {
#if PENSTOCK_HAS_KERNELS
  CuModule module = nullptr;
  CuFunction function = nullptr;
  CuResult result = api.module_load_data(&module, penstock_kernels_image);
  if (result == cu_success) result = api.module_get_function(&function, module, "penstock_scatter");
  if (result == cu_success) return function;
  log(LogLevel::info, "the scatter kernel does not load (CUDA error " + std::to_string(result) +
                          "); small scattered copies are made one by one");
#endif
  return nullptr;
}

}  // namespace penstock::cuda
