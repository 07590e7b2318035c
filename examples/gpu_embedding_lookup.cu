// Embeddings of a table that stays on disk: each warp of a kernel reads the rows of one sample from storage, and adds
// them up.
//
//   nvcc -std=c++20 -I include examples/gpu_embedding_lookup.cu -L build -lpenstock -o lookup && ./lookup [FOLDER]
//
// The table is made in the folder, and removed again. The CPU does the same and compares.
#include <penstock/penstock.h>
#include <penstock/device_array.cuh>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

using penstock::device::Array;

constexpr unsigned rows = 1 << 18;
constexpr unsigned columns = 128;  // a row has 512 bytes: a float4 for each thread of a warp
constexpr unsigned samples = 1 << 14;
constexpr unsigned rows_per_sample = 16;

__host__ __device__ inline unsigned row_of(unsigned sample, unsigned i) {
  return static_cast<unsigned>((sample * 7919ULL + i * 104729ULL) * 2654435761ULL % rows);
}

__global__ void __launch_bounds__(256, 4) look_up(Array<float4> table, float4* sums, unsigned* failures) {
  const unsigned sample = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const unsigned lane = threadIdx.x % 32;
  float4 sum{};
  for (unsigned i = 0; i < rows_per_sample; ++i) {
    const std::uint64_t first = row_of(sample, i) * (columns / 4ULL);
    // A row may lie in two pages: then this is called for each part.
    const auto add = [&](const float4* elements, std::uint64_t done, unsigned count) {
      const unsigned begin = static_cast<unsigned>(done);
      if (lane < begin || lane >= begin + count) return;
      const float4 value = elements[lane - begin];
      sum = {sum.x + value.x, sum.y + value.y, sum.z + value.z, sum.w + value.w};
    };
    if (!table.visit_warp(first, columns / 4, add).ok() && lane == 0) atomicAdd(failures, 1U);
  }
  sums[sample * (columns / 4) + lane] = sum;
}

int main(int argc, char** argv) {
  if (int count = 0; cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: there is no GPU");
    return 77;
  }
  std::vector<float> table(std::size_t{rows} * columns);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i * 2654435761ULL % 1024);
  const std::filesystem::path folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path();
  const auto path = folder / "penstock-embeddings.bin";
  {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(table.data()), static_cast<std::streamsize>(table.size() * sizeof(float)));
  }

  auto context = penstock::Context::create().value();
  auto server = penstock::GpuServer::start(context).value();
  const penstock::Store store = context.open(path.string()).value();
  auto queues = server.open({.stores = {{.store = store}}}).value();
  // A cache of 32 MiB for a table of 128.
  auto array = penstock::GpuArray::open(context, queues, {.memory_bytes = 32 << 20}).value();

  float4* sums = nullptr;
  unsigned* failures = nullptr;
  cudaMalloc(&sums, samples * columns * sizeof(float));
  cudaMalloc(&failures, sizeof(unsigned));
  cudaMemset(failures, 0, sizeof(unsigned));
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin);
  look_up<<<samples / 8, 256>>>(array.handle(), sums, failures);
  cudaEventRecord(end);
  const cudaError_t ended = cudaDeviceSynchronize();
  float milliseconds = 0;
  cudaEventElapsedTime(&milliseconds, begin, end);
  std::vector<float> found(std::size_t{samples} * columns);
  unsigned failed = 0;
  cudaMemcpy(found.data(), sums, found.size() * sizeof(float), cudaMemcpyDeviceToHost);
  cudaMemcpy(&failed, failures, sizeof failed, cudaMemcpyDeviceToHost);

  unsigned wrong = 0;
  for (unsigned sample = 0; sample < samples; ++sample) {
    for (unsigned column = 0; column < columns; ++column) {
      float sum = 0;  // whole numbers below 2^24: exact in any order
      for (unsigned i = 0; i < rows_per_sample; ++i) sum += table[std::size_t{row_of(sample, i)} * columns + column];
      wrong += found[std::size_t{sample} * columns + column] != sum ? 1 : 0;
    }
  }
  const auto statistics = array.statistics().value();
  std::printf("%u rows in %.1f ms, %.1f M rows a second; %.0f %% of pages hit; %u reads failed, %u sums wrong\n",
              samples * rows_per_sample, milliseconds, samples * rows_per_sample / milliseconds / 1e3,
              100.0 * static_cast<double>(statistics.hits) /
                  static_cast<double>(statistics.hits + statistics.fetched + statistics.joined + statistics.passed),
              failed, wrong);
  std::filesystem::remove(path);
  return ended == cudaSuccess && failed == 0 && wrong == 0 ? 0 : 1;
}
