// Small copies to and from scattered places, many in one launch: a block an entry.
#include <cstdint>

struct Entry {
  std::uint64_t from;
  std::uint64_t to;
  std::uint64_t bytes;
};

extern "C" __global__ void penstock_scatter(const Entry* entries, unsigned count) {
  if (blockIdx.x >= count) return;
  const Entry entry = entries[blockIdx.x];
  const auto* from = reinterpret_cast<const unsigned char*>(entry.from);
  auto* to = reinterpret_cast<unsigned char*>(entry.to);
  std::uint64_t copied = 0;
  if ((entry.from | entry.to) % sizeof(uint4) == 0) {
    const std::uint64_t words = entry.bytes / sizeof(uint4);
    for (std::uint64_t i = threadIdx.x; i < words; i += blockDim.x) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    copied = words * sizeof(uint4);
  }
  for (std::uint64_t i = copied + threadIdx.x; i < entry.bytes; i += blockDim.x) to[i] = from[i];
}
