// CUDA tools for programs and services beside Penstock, without CUDA's headers: streams, marks on them, addresses of
// words that kernels share with the host, the library's kernels, and a way to put off calls that a busy GPU would hold
// up.
//
// Nothing here disturbs a graph that another thread captures, or changes the current context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "penstock/domain.h"
#include "penstock/region.h"
#include "penstock/result.h"
#include "penstock/unpack.h"

namespace penstock {

// A CUDA stream (CUstream or cudaStream_t; null is the legacy null stream).
struct CudaStream {
  void* handle = nullptr;
};

// A mark on a stream: tells when the stream has reached it, and lets other streams wait for it.
//
// Thread safety: any thread. Lifetime: may outlive the stream.
class PENSTOCK_EXPORT CudaMark {
 public:
  // Behind all that is on the stream, whose device is `gpu`. Code::unsupported while the stream is being captured.
  static Result<CudaMark> put(Domain gpu, CudaStream stream);
  CudaMark(CudaMark&& other) noexcept;
  CudaMark& operator=(CudaMark&& other) noexcept;
  ~CudaMark();

  // An Error means that the work before it failed.
  Result<bool> reached() const;
  // Work put on the stream from now on begins when the mark is reached.
  Status hold_back(CudaStream stream) const;

 private:
  CudaMark(int gpu, void* event) : gpu_(gpu), event_(event) {}
  int gpu_ = 0;
  void* event_ = nullptr;
};

// The address at which a GPU reaches host memory: a Buffer in Domain::pinned() allocated while a GPU was in use, or
// memory that CUDA itself pinned. Code::device_error for memory that it can't reach.
PENSTOCK_EXPORT Result<std::uint64_t> gpu_address(Domain gpu, const void* pinned);

// Puts one of the library's kernels on a stream, with one block for each of `count` entries of its table; the table's
// address is the GPU's. "scatter" copies: an entry is three 64-bit numbers, from, to and bytes. ("rows_find" and
// "rows_place" are for RowsPlan alone.) Code::unsupported if the GPU lacks the kernel (Gpu::kernels), or has not loaded
// it yet.
PENSTOCK_EXPORT Status launch_kernel(Domain gpu, CudaStream stream, std::string_view kernel, std::uint64_t entries,
                                     std::uint32_t count);

// Puts a kernel on a stream that decodes chunks of a packed tensor. What is wrong with the stored bytes is known when
// the kernel has ended, by the run's status word. Whatever they are, only the run's memory is written.
// Code::invalid_argument for a run whose own numbers don't fit each other; Code::unsupported where can_unpack is false.
PENSTOCK_EXPORT Status launch_unpack(Domain gpu, CudaStream stream, const UnpackRun& run);
// Whether the GPU has the kernels for that, and has loaded them. It waits for nothing.
PENSTOCK_EXPORT bool can_unpack(Domain gpu);

// While one lives, Penstock frees no GPU or pinned memory and loads no kernels in this process. For such calls the
// driver waits until the GPU has finished all its work, and meanwhile blocks every other CUDA call, including copies.
// Usually that takes a moment. A program whose kernels run for hours, or whose graphs wait for the program itself,
// holds one meanwhile; Statistics::unfreed_* counts what waits. Requests in stream order, and a Standing, do this by
// themselves.
//
// Thread safety: any thread; any number may live. Lifetime: at most the process's.
class PENSTOCK_EXPORT HeldFrees {
 public:
  // Code::would_deadlock if something is already being freed and does not finish.
  static Result<HeldFrees> begin();
  HeldFrees(HeldFrees&& other) noexcept;
  HeldFrees& operator=(HeldFrees&& other) noexcept;
  ~HeldFrees();

 private:
  HeldFrees() = default;
  bool is_held_ = true;
};

}  // namespace penstock
