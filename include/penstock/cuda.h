// What a program, or a service above Penstock, needs of CUDA beside it, without a header of CUDA's: its streams, marks
// on them, the addresses of words that kernels share with the host, the kernels of the library, and a way to put off
// what a busy GPU would hold up.
//
// Nothing here disturbs a graph that another thread captures, or leaves another context current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

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

// Puts one of the library's own kernels on a stream, with a block for each of `count` entries of its table, whose
// address is the GPU's. There is "scatter", which copies: an entry is three numbers of 64 bits, from, to and bytes.
// Code::unsupported where the GPU has no such kernel (Gpu::kernels), or has not loaded it yet.
PENSTOCK_EXPORT Status launch_kernel(Domain gpu, CudaStream stream, std::string_view kernel, std::uint64_t entries,
                                     std::uint32_t count);

// While one lives, Penstock frees no GPU or pinned memory, and loads no kernels, in this process. The driver waits with
// that until the GPU has done all that it was given, and lets no other call of CUDA through meanwhile, copies included.
// Usually that takes a moment. Programs whose kernels run for hours, or whose graphs wait for the program itself, hold
// one as long; Statistics::unfreed_* counts what waits. Requests in stream order, and a Standing, do this by
// themselves.
//
// Thread safety: any thread; any number may live. Lifetime: the process's at most.
class PENSTOCK_EXPORT HeldFrees {
 public:
  // Code::would_deadlock if something is being freed already and does not end.
  static Result<HeldFrees> begin();
  HeldFrees(HeldFrees&& other) noexcept;
  HeldFrees& operator=(HeldFrees&& other) noexcept;
  ~HeldFrees();

 private:
  HeldFrees() = default;
  bool is_held_ = true;
};

}  // namespace penstock
