// The header of a GGUF file, version 2 or 3. Every size in it is compared with what is there before it is used.
//
// Thread safety: pure functions.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "services/models/contents.h"

namespace penstock::models {

inline constexpr std::string_view gguf_magic = "GGUF";

// Reads bytes of a file from an offset on.
using ReadAt = std::function<Status(std::uint64_t offset, std::span<char> bytes)>;
// Of a file of `file_bytes`, of which no more is read than the header has, nor more than header_limit_bytes.
Result<Contents> parse_gguf(const ReadAt& read, std::uint64_t file_bytes);
// Of a file that is in memory.
Result<Contents> parse_gguf(std::string_view file);

}  // namespace penstock::models
