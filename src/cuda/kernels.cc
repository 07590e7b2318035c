#include "cuda/kernels.h"

#include <span>
#include <string>
#include <tuple>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "penstock/result.h"

namespace penstock::cuda {

namespace {

#if PENSTOCK_HAS_KERNELS
// A fat binary, put here by the assembler (kernels.cmake).
extern "C" const unsigned char penstock_kernels_image[];
constexpr int oldest_compute = 75;

// The driver loads a kernel when it is first launched, and may wait for the whole device then. Later a stream may be
// waiting for us.
CuResult launch_once(const RelaxedApi& api, std::span<const CuFunction> kernels) {
  CuStream stream = nullptr;
  CuResult result = api.stream_create(&stream, cu_stream_non_blocking, 0);
  if (result != cu_success) return result;
  // Whatever they take: no entries, or no chunks.
  UnpackRun nothing;
  void* parameters[] = {&nothing, &nothing};
  for (CuFunction const kernel : kernels) {
    if (result != cu_success) break;
    result = api.launch_kernel(kernel, 1, 1, 1, kernel_threads, 1, 1, 0, stream, parameters, nullptr);
  }
  if (result == cu_success) result = api.stream_synchronize(stream);
  api.stream_destroy(stream);
  return result;
}
#endif

}  // namespace

bool has_kernels_for([[maybe_unused]] int compute_major, [[maybe_unused]] int compute_minor) {
#if PENSTOCK_HAS_KERNELS
  return compute_major * 10 + compute_minor >= oldest_compute;
#else
  return false;
#endif
}

CuFunction KernelTable::find(std::string_view name) const {
  if (name == "scatter") return (*this)[Kernel::scatter];
  if (name == "rows_find") return (*this)[Kernel::rows_find];
  return name == "rows_place" ? (*this)[Kernel::rows_place] : nullptr;
}

void KernelTable::load(const RelaxedApi& api) {
  if (const CuResult result = load_module(api); result != cu_success) {
    static_cast<void>(or_out_of_memory([&]() -> Status {
      log(LogLevel::info,
          "kernels don't load (CUDA error " + std::to_string(result) + "); copies are made without them");
      return {};
    }));
  }
  settled_.store(true, std::memory_order_release);
}

CuResult KernelTable::load_module([[maybe_unused]] const RelaxedApi& api) {
#if PENSTOCK_HAS_KERNELS
  CuModule module = nullptr;
  if (const CuResult result = api.module_load_data(&module, penstock_kernels_image); result != cu_success) {
    return result;
  }
  std::array<CuFunction, std::tuple_size_v<decltype(table_)>> functions{};
  for (std::size_t i = 0; i < functions.size(); ++i) {
    const CuResult result = api.module_get_function(&functions[i], module, table_[i].name);
    if (result != cu_success) return result;
  }
  if (const CuResult result = launch_once(api, functions); result != cu_success) return result;
  for (std::size_t i = 0; i < functions.size(); ++i) {
    table_[i].function.store(functions[i], std::memory_order_release);
  }
#endif
  return cu_success;
}

}  // namespace penstock::cuda
