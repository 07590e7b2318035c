// Random walks over a graph that stays on disk: each thread of a kernel walks by itself, and reads the neighbours of
// where it is from storage.
//
//   nvcc -std=c++20 -I include examples/gpu_graph_walk.cu -L build -lpenstock -o walk && ./walk [FOLDER]
//
// The graph lies in two files: where the neighbours of each node begin, and the neighbours. It is made in the folder,
// and removed again. The CPU walks the same ways and compares.
#include <penstock/penstock.h>
#include <penstock/device_array.cuh>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using penstock::device::Array;
using Offset = std::uint64_t;
using Node = std::uint32_t;

constexpr Node nodes = 1 << 20;
constexpr unsigned walkers = 1 << 16;
constexpr unsigned steps = 32;

__host__ __device__ inline std::uint64_t mix(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
  return value ^ value >> 31;
}

__global__ void __launch_bounds__(256, 4) walk(Array<Offset> offsets, Array<Node> neighbours, Node* ends) {
  const unsigned walker = blockIdx.x * blockDim.x + threadIdx.x;
  Node at = static_cast<Node>(mix(walker) % nodes);
  for (unsigned step = 0; step < steps; ++step) {
    const Offset begin = offsets[at];
    const Offset end = offsets[at + 1];
    if (end != begin) at = neighbours[begin + mix(std::uint64_t{walker} * steps + step) % (end - begin)];
  }
  ends[walker] = at;
}

template <typename T>
void write_file(const std::filesystem::path& path, const std::vector<T>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

int main(int argc, char** argv) {
  if (int count = 0; cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: there is no GPU");
    return 77;
  }
  std::vector<Offset> offsets(nodes + 1);
  std::vector<Node> neighbours;
  for (Node node = 0; node < nodes; ++node) {
    offsets[node] = neighbours.size();
    for (unsigned i = 0; i < mix(node) % 16; ++i)
      neighbours.push_back(static_cast<Node>(mix(node * 16ULL + i) % nodes));
  }
  offsets[nodes] = neighbours.size();
  const std::filesystem::path folder = argc > 1 ? argv[1] : std::filesystem::temp_directory_path();
  const auto offsets_file = folder / "penstock-walk-offsets.bin";
  const auto neighbours_file = folder / "penstock-walk-neighbours.bin";
  write_file(offsets_file, offsets);
  write_file(neighbours_file, neighbours);

  auto context = penstock::Context::create().value();
  auto server = penstock::GpuServer::start(context).value();
  const penstock::Store stores[] = {context.open(offsets_file.string()).value(),
                                    context.open(neighbours_file.string()).value()};
  auto queues = server.open({.stores = {{.store = stores[0]}, {.store = stores[1]}}}).value();
  // A cache of 4 MiB each, for files of 8 and 30.
  auto offsets_array = penstock::GpuArray::open(context, queues, {.store = 0, .memory_bytes = 4 << 20}).value();
  auto neighbours_array = penstock::GpuArray::open(context, queues, {.store = 1, .memory_bytes = 4 << 20}).value();

  Node* ends = nullptr;
  cudaMalloc(&ends, walkers * sizeof(Node));
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaEventRecord(begin);
  walk<<<walkers / 256, 256>>>(offsets_array.handle(), neighbours_array.handle(), ends);
  cudaEventRecord(end);
  const cudaError_t ended = cudaDeviceSynchronize();
  float milliseconds = 0;
  cudaEventElapsedTime(&milliseconds, begin, end);
  std::vector<Node> found(walkers);
  cudaMemcpy(found.data(), ends, walkers * sizeof(Node), cudaMemcpyDeviceToHost);

  unsigned wrong = 0;
  for (unsigned walker = 0; walker < walkers; ++walker) {
    Node at = static_cast<Node>(mix(walker) % nodes);
    for (unsigned step = 0; step < steps; ++step) {
      const Offset from = offsets[at];
      const Offset to = offsets[at + 1];
      if (to != from) at = neighbours[from + mix(std::uint64_t{walker} * steps + step) % (to - from)];
    }
    wrong += found[walker] != at ? 1 : 0;
  }
  const auto statistics = neighbours_array.statistics().value();
  std::printf(
      "%u walks of %u steps in %.1f ms, %.1f M steps a second; neighbours: %.0f %% of pages hit; %u walks wrong\n",
      walkers, steps, milliseconds, walkers * steps / milliseconds / 1e3,
      100.0 * static_cast<double>(statistics.hits) /
          static_cast<double>(statistics.hits + statistics.fetched + statistics.joined + statistics.passed),
      wrong);
  std::filesystem::remove(offsets_file);
  std::filesystem::remove(neighbours_file);
  return ended == cudaSuccess && wrong == 0 ? 0 : 1;
}
