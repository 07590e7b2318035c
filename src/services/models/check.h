// What check_model is made of.
//
// Thread safety: functions of their arguments.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/result.h"

namespace penstock::models {

// Where save_safetensors keeps checksums: a JSON object, from the names of tensors to XXH3 in hexadecimal digits.
inline constexpr std::string_view checksums_key = "penstock.xxh3";
using Checksums = std::map<std::string, std::string, std::less<>>;
Result<Checksums> parse_checksums(std::string_view json);

// The SHA-256 that a blob of the Hugging Face cache has for a name, found through the links; nothing for other files.
std::optional<std::string> blob_digest(const std::string& path);

}  // namespace penstock::models
