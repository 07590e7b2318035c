// What goes by CUDA's names, so that no header of CUDA's is needed.
#pragma once

namespace penstock {

// A stream of CUDA's (a CUstream or cudaStream_t; null is the legacy null stream).
struct CudaStream {
  void* handle = nullptr;
};

}  // namespace penstock
