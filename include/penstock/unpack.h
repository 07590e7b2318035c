// UnpackRun: what the library's kernel `unpack` takes (launch_unpack in penstock/cuda.h): neighbouring chunks of a
// packed tensor in memory that the GPU reaches, and where their decoded bytes belong. docs/packed.md has the format.
//
// Plain numbers: the kernel gets a copy, so nothing of it has to outlive the call.
#pragma once

#include <cstdint>

namespace penstock {

// By its number in the header of a packed tensor.
enum class PackedType : std::uint32_t { bf16 = 1, f16 = 2, f32 = 3, f8_e4m3 = 4, f8_e5m2 = 5 };

struct UnpackRun {
  static constexpr std::uint32_t chunks_most = 512;
  static constexpr std::uint32_t chunk_values = 65536;   // but in the last chunk of a tensor
  static constexpr std::uint32_t chunk_unit_bytes = 64;  // chunks begin and end at multiples of this
  static constexpr std::uint32_t alignment_bytes = 16;   // of `stored`

  std::uint64_t stored = 0;        // the address of the first chunk
  std::uint64_t memory = 0;        // where decoded bytes go: a multiple of a value's bytes
  std::uint64_t memory_bytes = 0;  // that are written, whole values
  std::uint64_t skip_bytes = 0;    // of the run's decoded bytes, before those
  std::uint64_t status = 0;        // the address of a 32-bit word, written only where something is wrong
  PackedType type = PackedType::bf16;
  std::uint32_t first_chunk = 0;  // its number in the tensor
  std::uint32_t count = 0;        // of chunks
  std::uint32_t last_values = 0;  // of the run's last chunk
  // Chunk i of the run is [starts[i], starts[i + 1]), in units from `stored` on; starts[0] is 0.
  std::uint32_t starts[chunks_most + 1] = {};
};

// What the status word says: a reason, and which chunk of the run it was. Of several bad chunks any may be named.
enum class UnpackReason : std::uint32_t { lying_header = 1, too_few_exceptions = 2, checksum = 3, misaligned = 4 };

constexpr std::uint32_t unpack_status(UnpackReason reason, std::uint32_t chunk_of_run) {
  return static_cast<std::uint32_t>(reason) << 16 | (chunk_of_run + 1);
}
constexpr UnpackReason unpack_reason(std::uint32_t status) {
  return static_cast<UnpackReason>(status >> 16);
}
constexpr std::uint32_t unpack_chunk(std::uint32_t status) {
  return (status & 0xffff) - 1;
}

}  // namespace penstock
