// The format of packed tensors, as docs/packed.md has it: what lies where, and how much of it there is.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/result.h"

namespace penstock::packed {

inline constexpr std::uint32_t format_version = 1;
inline constexpr std::uint32_t planes_codec = 1;
inline constexpr std::string_view planes_codec_name = "planes";
inline constexpr std::uint64_t tensor_alignment = 4096;
inline constexpr std::uint32_t chunk_values = 65536;
inline constexpr std::uint32_t tile_values = 1024;
inline constexpr std::uint32_t chunk_tiles = chunk_values / tile_values;
inline constexpr std::uint32_t header_bytes = 64;  // of a tensor, and of a chunk
inline constexpr std::uint32_t chunk_alignment = 64;
inline constexpr std::uint32_t plane_bytes = tile_values / 8;
inline constexpr std::uint32_t code_bits_most = 4;
inline constexpr std::uint32_t dictionary_size = 1 << code_bits_most;
// A piece of a request reads at most so many chunks: their offsets are arguments of a kernel.
inline constexpr std::uint32_t run_chunks_most = 512;

// The number of a type in the header of a tensor.
enum class Kind : std::uint8_t { bf16 = 1, f16 = 2, f32 = 3, f8_e4m3 = 4, f8_e5m2 = 5 };
inline constexpr std::array kinds = {Kind::bf16, Kind::f16, Kind::f32, Kind::f8_e4m3, Kind::f8_e5m2};
std::optional<Kind> kind_from_name(std::string_view dtype);  // as safetensors writes it
std::string_view kind_name(Kind kind);

// How a value is divided.
struct Division {
  std::uint32_t value_bytes;
  std::uint32_t symbol_shift;            // of the exponent in the value
  std::uint32_t symbol_mask;             // once it is shifted
  std::uint32_t raw_planes;              // bits that are stored as they are, a plane each
  std::uint32_t byte_bytes;              // of a value, beside the planes
  std::uint32_t low_bytes;               // of a value: its low part as it is
  std::array<std::uint8_t, 4> raw_bits;  // which bits of the value the raw planes hold
};
constexpr Division division_of(Kind kind) {
  switch (kind) {
    case Kind::bf16:
      return {2, 7, 0xff, 0, 1, 0, {}};
    case Kind::f16:
      return {2, 10, 0x1f, 3, 0, 1, {8, 9, 15, 0}};
    case Kind::f32:
      return {4, 23, 0xff, 0, 1, 2, {}};
    case Kind::f8_e4m3:
      return {1, 3, 0xf, 4, 0, 0, {0, 1, 2, 7}};
    case Kind::f8_e5m2:
      break;
  }
  return {1, 2, 0x1f, 3, 0, 0, {0, 1, 7, 0}};
}

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
constexpr std::uint32_t tiles_of(std::uint32_t values) {
  return (values + tile_values - 1) / tile_values;
}

enum class Form : std::uint8_t { raw = 0, planes = 1 };

struct ChunkHeader {
  std::uint32_t bytes = 0;
  std::uint32_t values = 0;
  Form form = Form::raw;
  std::uint8_t code_bits = 0;
  std::uint32_t exceptions = 0;
  std::uint32_t number = 0;
  std::uint64_t checksum = 0;
  std::array<std::uint8_t, dictionary_size> dictionary{};
};
// Where the sections of a chunk begin.
struct ChunkSections {
  std::uint64_t planes = header_bytes;
  std::uint64_t bytes = 0;
  std::uint64_t low = 0;
  std::uint64_t bases = 0;
  std::uint64_t exceptions = 0;
  std::uint64_t end = 0;  // rounded up: the length of the chunk
};
ChunkSections sections_of(Kind kind, const ChunkHeader& header);
constexpr std::uint64_t raw_chunk_bytes(std::uint64_t value_bytes) {
  return round_up(header_bytes + chunk_values * value_bytes, chunk_alignment);
}

void write_chunk_header(const ChunkHeader& header, std::span<std::byte, header_bytes> out);
// Nothing if the chunk is not what the index promises, or its sections don't fill it exactly.
struct ExpectedChunk {
  std::uint32_t number = 0;
  std::uint32_t values = 0;
};
std::optional<ChunkHeader> read_chunk_header(Kind kind, std::span<const std::byte> chunk,
                                             const ExpectedChunk& expected);

// The header of a tensor with its index.
struct TensorIndex {
  Kind kind = Kind::bf16;
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;            // of the packed tensor
  std::vector<std::uint32_t> starts;  // of chunks, in units of 64 bytes; the last is the end of the last chunk

  std::uint32_t chunks() const { return static_cast<std::uint32_t>(starts.size() - 1); }
  std::uint64_t offset(std::uint64_t chunk) const { return std::uint64_t{starts[chunk]} * chunk_alignment; }
  std::uint32_t values_of(std::uint32_t chunk) const {
    return chunk + 1 < chunks() ? chunk_values
                                : static_cast<std::uint32_t>(values - std::uint64_t{chunk} * chunk_values);
  }
};
std::uint64_t chunks_of(std::uint64_t values);
// How much of a tensor its header and index take, before the first chunk.
std::uint64_t index_bytes(std::uint64_t values);
std::vector<std::byte> write_index(const TensorIndex& index);
// `bytes`: the first index_bytes(values) of the tensor. Code::unsupported for another version or codec, otherwise
// invalid_argument.
struct ExpectedTensor {
  Kind kind = Kind::bf16;
  std::uint64_t values = 0;
  std::uint64_t bytes = 0;
};
Result<TensorIndex> read_index(std::span<const std::byte> bytes, const ExpectedTensor& expected);

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc = 0);

}  // namespace penstock::packed
