// What selftest.cc has a GPU do: all that is read goes to memory that the host compares.
#include <penstock/device_array.cuh>

#include "services/gpu_queues/selftest.h"

using penstock::device::Array;
using penstock::device::IoResult;
using penstock::device::Queues;
using penstock::gpu_queues::SelftestJob;

namespace {

__device__ unsigned thread_number() {
  return blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ void note(const SelftestJob& job, const IoResult& result) {
  if (result.ok()) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(job.failures), 1ULL);
  atomicMax(reinterpret_cast<unsigned long long*>(job.failures) + 1, static_cast<unsigned long long>(result.status));
}

}  // namespace

// Each thread a block.
extern "C" __global__ void penstock_selftest_blocks(SelftestJob job) {
  const unsigned thread = thread_number();
  if (thread >= job.count) return;
  const unsigned long long bytes = SelftestJob::block_bytes;
  auto* const to = reinterpret_cast<unsigned char*>(job.memory) + thread * bytes;
  note(job, Queues(job.handle).read({bytes * job.place(thread), bytes}, to));
}

// Each block of threads a share of the layer.
extern "C" __global__ void penstock_selftest_layer(SelftestJob job) {
  const unsigned long long begin = blockIdx.x * job.share_bytes;
  if (begin >= job.count) return;
  const unsigned long long bytes = job.count - begin < job.share_bytes ? job.count - begin : job.share_bytes;
  const IoResult result =
      Queues(job.handle).read_block({begin, bytes}, reinterpret_cast<unsigned char*>(job.memory) + begin);
  if (threadIdx.x == 0) note(job, result);
}

// Each thread an element.
extern "C" __global__ void penstock_selftest_array(SelftestJob job) {
  const unsigned thread = thread_number();
  if (thread >= job.count) return;
  const Array<unsigned long long> array(job.handle);
  unsigned long long value = 0;
  note(job, array.get(job.place(thread), value));
  reinterpret_cast<unsigned long long*>(job.memory)[thread] = value;
}
