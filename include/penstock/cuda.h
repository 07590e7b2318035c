// What a program, or a service above Penstock, needs of CUDA beside it, without a header of CUDA's: its streams, marks
// on them, and the addresses of words that kernels share with the host.
//
// Nothing here disturbs a graph that another thread captures, or leaves another context current.
#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/domain.h"
#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock {

// A stream of CUDA's (a CUstream or cudaStream_t; null is the legacy null stream).
struct CudaStream {
  void* handle = nullptr;
};

// A mark on a stream: tells when the stream has come to it, and makes other streams wait for that.
//
// Thread safety: any thread. Lifetime: may outlive the stream.
class PENSTOCK_EXPORT CudaMark {
 public:
  // After all that is on the stream now. `gpu` is the stream's.
  static Result<CudaMark> put(Domain gpu, CudaStream stream);
  CudaMark(CudaMark&& other) noexcept;
  CudaMark& operator=(CudaMark&& other) noexcept;
  ~CudaMark();

  // An Error: the work before it failed.
  Result<bool> reached() const;
  // What is put on the stream from now on begins when the mark is reached.
  Status hold_back(CudaStream stream) const;

 private:
  CudaMark(int gpu, void* event) : gpu_(gpu), event_(event) {}
  int gpu_ = 0;
  void* event_ = nullptr;
};

// The address by which a GPU reaches memory of the host: of a Buffer in Domain::pinned() that was allocated when a GPU
// was in use, or pinned by CUDA itself. Code::device_error for memory that it does not reach.
PENSTOCK_EXPORT Result<std::uint64_t> gpu_address(Domain gpu, const void* pinned);

}  // namespace penstock
