// Compiled and not run: everything that device.cuh offers to a kernel.
#include <penstock/device.cuh>

using penstock::device::Extent;
using penstock::device::IoResult;
using penstock::device::Pending;
using penstock::device::Queues;

// By each thread for itself.
extern "C" __global__ void penstock_by_threads(Queues queues, unsigned char* memory, unsigned* failures) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned long long block = queues.block_bytes();
  const Extent extent{thread * block, block};
  if (!queues.read(extent, memory + thread * block).ok()) atomicAdd(failures, 1U);
  if (!queues.write(extent, memory + thread * block, 1'000'000).ok()) atomicAdd(failures, 1U);
  const auto is_zero = [&](const unsigned char* bytes, bool ok) {
    if (!ok || bytes[0] != 0) atomicAdd(failures, 1U);
  };
  if (!queues.visit(extent, is_zero).ok()) atomicAdd(failures, 1U);
}

extern "C" __global__ void penstock_ahead(Queues queues, unsigned char* memory, unsigned* failures) {
  Pending next = queues.begin_read({queues.size_bytes() - 512, threadIdx.x % 32 == 0 ? 512U : 0U});
  Pending now = static_cast<Pending&&>(next);
  next = queues.begin_read({0, 512});
  const IoResult result = queues.finish(now, memory);
  if (!result.ok() && !queues.is_closed()) atomicAdd(failures, result.field);
  if (!queues.finish(next, nullptr).ok()) atomicAdd(failures, 1U);
}

// A warp or a block together.
extern "C" __global__ void penstock_together(Queues queues, unsigned char* memory, unsigned* failures) {
  const Extent extent{0, 64ULL * queues.place_bytes()};
  bool ok = queues.read_warp(extent, memory).ok() && queues.write_warp(extent, memory).ok();
  ok = queues.read_block(extent, memory).ok() && queues.write_block(extent, memory).ok() && ok;
  if (!ok) atomicAdd(failures, 1U);
}
