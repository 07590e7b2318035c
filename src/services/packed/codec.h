// Chunks of packed tensors: 65536 values, encoded and decoded by themselves.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "services/packed/format.h"
#include "services/packed/kernels.h"

namespace penstock::packed {

// Appends a chunk. `values`: whole values of the kind, at most 65536 of them, at least one.
void encode_chunk(const Kernels& kernels, Kind kind, std::uint32_t number, std::span<const std::byte> values,
                  std::vector<std::byte>& out);

enum class Fault : std::uint8_t { none, header, exceptions, checksum };
std::string_view fault_text(Fault fault);

// Part of the decoded bytes of a chunk.
struct WantedBytes {
  std::uint64_t skip = 0;        // before them
  std::span<std::byte> memory;   // as many as are wanted
  bool is_part_of_much = false;  // more than caches hold: better written past them
};
// Decodes all of a chunk, whose checksum needs all, and writes what is wanted of it. Whatever the chunk has, nothing
// else is written or read. After a fault, the memory has any bytes. REQUIRES: what is wanted lies within the values
// that are expected.
Fault decode_chunk(const Kernels& kernels, Kind kind, std::span<const std::byte> chunk, const ExpectedChunk& expected,
                   const WantedBytes& wanted);

std::uint64_t checksum_of(const Kernels& kernels, Kind kind, std::span<const std::byte> values);

}  // namespace penstock::packed
