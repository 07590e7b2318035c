// Pieces of JSON as text. Trees of nlohmann::json, once they are nested, need memory to be freed, and end the process
// where there is none.
//
// Thread safety: functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace penstock::models {

// Throws nlohmann::json::type_error if it is not UTF-8.
inline std::string json_of(std::string_view text) {
  return nlohmann::json(text).dump();
}

inline std::string json_of(std::span<const std::uint64_t> numbers) {
  std::string text;
  for (const std::uint64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return "[" + text + "]";
}

}  // namespace penstock::models
