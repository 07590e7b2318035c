// What the metadata of a safetensors file says of its packed tensors, which stand in the header as bytes.
//
// Thread safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "services/models/contents.h"

namespace penstock::models {

inline constexpr std::string_view packed_key = "penstock.packed";

// Gives packed tensors their true types, shapes and sizes. REQUIRES: the tensors are those of the header.
Status apply_packed(Contents& contents);

struct PackedEntry {
  std::string_view name;
  DType dtype = DType::bf16;
  std::span<const std::uint64_t> shape;
};
// The value of that key.
std::string packed_metadata(std::span<const PackedEntry> tensors);

}  // namespace penstock::models
