// Compiled and not run: everything that device_array.cuh offers to a kernel.
#include <penstock/device_array.cuh>

using penstock::device::Array;

extern "C" __global__ void __launch_bounds__(256, 4)
    penstock_array_by_threads(Array<float> values, const unsigned long long* wanted, float* out, unsigned* failures) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  out[thread] = values[wanted[thread]];
  float again = 0;
  if (!values.get(wanted[thread], again, 1'000'000).ok() || again != out[thread]) atomicAdd(failures, 1U);
}

extern "C" __global__ void penstock_array_by_warps(Array<uint4> values, uint4* out, unsigned* failures) {
  const unsigned long long warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const unsigned long long first = warp * values.per_page();
  uint4 sum{};
  const auto add = [&](const uint4* elements, unsigned long long, unsigned count) {
    for (unsigned i = threadIdx.x % 32; i < count; i += 32) sum.x += elements[i].x ^ elements[i].w;
  };
  if (!values.visit_warp(first, values.per_page(), add).ok()) atomicAdd(failures, sum.x);
  if (!values.read_warp(0, values.size(), out).ok()) atomicAdd(failures, 1U);
}
