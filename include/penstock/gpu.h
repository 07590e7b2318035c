// Gpu: what can be known about a GPU without making a CUDA context on it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock {

struct Gpu {
  Domain domain;
  std::string name;         // "NVIDIA H200"
  std::string pci_address;  // "0000:01:00.0", as in /sys/bus/pci/devices
  std::uint64_t memory_bytes = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int copy_engines = 0;
  int numa_node = -1;  // of the host memory next to it; -1: unknown
  bool gpu_direct_rdma = false;
  bool dma_buf = false;
  int driver_cuda_version = 0;  // 13000 for CUDA 13.0
  bool kernels = false;         // ours are built in and fit; without them, small scattered copies take longer
};

// The GPUs that this process may use, in CUDA's order. Loads and initializes the CUDA driver; Code::no_device with the
// reason if there is none.
PENSTOCK_EXPORT Result<std::vector<Gpu>> list_gpus();

// Finds the device of your memory, from any of CUDA's allocators. Code::device_error for memory that CUDA does not
// know, that was freed, or that has fewer than `size_bytes` left.
PENSTOCK_EXPORT Result<Region> find_cuda_region(const void* pointer, std::size_t size_bytes);
// The whole allocation that contains such memory.
PENSTOCK_EXPORT Result<Region> find_cuda_allocation(const void* pointer, std::size_t size_bytes);

// Copies between host and GPU memory, or within either, and waits for the end. For set-up and checks: a Context's
// transfers don't need it. REQUIRES: equal sizes.
PENSTOCK_EXPORT Status copy(Region to, Region from);

// Rows that don't overlap.
struct StridedRows {
  Region memory;                // from the first byte of the first row to the last byte of the last
  std::size_t row_bytes = 0;    // not 0
  std::size_t pitch_bytes = 0;  // from the beginning of one row to that of the next; at least row_bytes
};
struct RowsCopy {
  StridedRows to;
  StridedRows from;  // as many, of the same size
};
// The same for rows, such as a part of each row of a matrix. Waits once for all of them.
PENSTOCK_EXPORT Status copy_rows(std::span<const RowsCopy> copies);

}  // namespace penstock
