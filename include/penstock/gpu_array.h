// GpuArray: a store, or a stretch of one, that CUDA kernels index like memory (penstock/device_array.cuh). It may be
// far larger than the GPU's memory: kernels read the pages that they touch, through a set of queues, and keep as many
// of them as there is memory for.
//
//   auto queues = server.open({.gpu = penstock::Domain::cuda(0), .stores = {{.store = file}}}).value();
//   auto array = penstock::GpuArray::open(context, queues, {.memory_bytes = 4ULL << 30}).value();
//   walk<<<132, 256>>>(array.handle(), …);    // the kernel's parameter is a penstock::device::Array<T>
//
// Thread safety: any thread; `clear` while no kernel uses the array. Lifetime: the GpuQueues must outlive it, and it
// the kernels that use it.
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/context.h"
#include "penstock/gpu_queues.h"
#include "penstock/paged_array.h"

namespace penstock {

namespace gpu_queues {
class OpenArray;
}

struct GpuArrayOptions {
  std::uint32_t store = 0;  // its place in GpuQueuesOptions::stores
  // The bytes that are the array; to the end, to that of the store's window. Kernels find IoStatus::misaligned where
  // the offset is no multiple of their elements' size.
  Extent extent = {};
  // GPU memory for all of it: pages, and 8 bytes for each page that the array has, resident or not.
  std::uint64_t memory_bytes = 256ULL << 20;
  // A power of two, from 512 to the set's place_bytes; 0: place_bytes. A page is read by one command.
  std::uint32_t page_bytes = 0;
};

// Since the array was opened or cleared. A page that a warp takes for several of its threads counts once.
struct GpuArrayStatistics {
  std::uint64_t hits = 0;
  std::uint64_t fetched = 0;  // read into the cache
  std::uint64_t joined = 0;   // found while another warp read them
  std::uint64_t passed = 0;   // read past the cache, whose pages were all in use
  std::uint64_t failed = 0;
  device::IoResult first_failure;  // also of an index that is outside
};

// Made by default, or moved from, it is closed.
class PENSTOCK_EXPORT GpuArray {
 public:
  // Code::invalid_argument for options out of range, Code::out_of_range for an extent outside of the store's window;
  // Code::over_budget if there is no such memory, or it is too little for one page.
  static Result<GpuArray> open(const Context& context, const GpuQueues& queues, const GpuArrayOptions& options = {});
  GpuArray();
  GpuArray(GpuArray&&) noexcept;
  GpuArray& operator=(GpuArray&&) noexcept;
  ~GpuArray();

  explicit operator bool() const { return array_ != nullptr; }
  // The parameter of kernels, an address of the GPU's; null where there is no array.
  device::PagedArray* handle() const;
  const GpuArrayOptions& options() const;  // with every default filled in
  std::uint32_t page_count() const;        // of the array
  std::uint32_t frame_count() const;       // pages that may be resident

  // While kernels run, too: as far as they have come.
  Result<GpuArrayStatistics> statistics() const;
  // Forgets all pages, for a store that was changed, and all statistics. REQUIRES: no kernel uses the array.
  Status clear();
  // REQUIRES: no kernel uses the array.
  void close();

 private:
  explicit GpuArray(std::unique_ptr<gpu_queues::OpenArray> array);
  std::unique_ptr<gpu_queues::OpenArray> array_;
};

}  // namespace penstock
