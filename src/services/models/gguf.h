// The header of a GGUF file, version 2 or 3. Every size in it is compared with what is there before it is used.
//
// Thread safety: a pure function.
#pragma once

#include <optional>
#include <string_view>

#include "services/models/contents.h"

namespace penstock::models {

inline constexpr std::string_view gguf_magic = "GGUF";

// `front` is the beginning of a file of `file_bytes`. Nothing: the header is longer than that.
Result<std::optional<Contents>> parse_gguf(std::string_view front, std::uint64_t file_bytes);

}  // namespace penstock::models
