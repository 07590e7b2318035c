// The header of a safetensors file: 8 bytes of length, then JSON. Every rule of the format is checked; a file that
// passes has its tensors one after the other, from the first byte behind the header to the last of the file.
//
// Thread safety: pure functions.
#pragma once

#include <string_view>

#include "services/models/contents.h"

namespace penstock::models {

inline constexpr std::size_t safetensors_length_bytes = 8;
inline constexpr std::string_view metadata_key = "__metadata__";

// How many bytes of JSON follow the first 8.
Result<std::uint64_t> safetensors_header_bytes(std::string_view first_bytes, std::uint64_t file_bytes);
// What follows the last tensor.
enum class Rest : std::uint8_t { refused, ignored };
// `rest` is ignored where the file lies at the front of a device. REQUIRES: `json` is as long as
// safetensors_header_bytes said.
Result<Contents> parse_safetensors(std::string_view json, std::uint64_t file_bytes, Rest rest = Rest::refused);

}  // namespace penstock::models
