// CudaModule: kernels of a program's own on a GPU, without CUDA's headers: PTX, a cubin or a fat binary, as nvcc makes
// them.
//
// Thread safety: any thread. Lifetime: no kernel of it may run when it is destroyed.
#pragma once

#include <cstdint>

#include "penstock/domain.h"
#include "penstock/result.h"

namespace penstock {

class PENSTOCK_EXPORT CudaModule {
 public:
  // The driver waits for all that the GPU does, and may compile the PTX. Code::device_error if it does not take it.
  static Result<CudaModule> load(Domain gpu, const char* image);
  CudaModule(CudaModule&& other) noexcept;
  CudaModule& operator=(CudaModule&& other) noexcept;
  ~CudaModule();

  struct Grid {
    std::uint32_t blocks = 1;
    std::uint32_t threads = 1;  // of each
  };
  // Runs a kernel on a stream of Penstock's, and waits for its end. `parameter` is its only one, copied bit by bit.
  Status run(const char* kernel, Grid grid, const void* parameter) const;

 private:
  CudaModule(int gpu, void* module) : gpu_(gpu), module_(module) {}
  int gpu_ = 0;
  void* module_ = nullptr;
};

}  // namespace penstock
