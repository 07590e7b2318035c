#include "tier_names.h"

namespace penstock::cli {

namespace {

bool is_utf8(const std::string& text) {
  const Json json = text;
  return json.dump(-1, ' ', false, Json::error_handler_t::ignore) ==
         json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

Json name_json(const std::string& name) {
  if (is_utf8(name) && percent_decoded(name) == name) return name;
  std::string encoded;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && c != '%') {
      encoded += c;
    } else {
      constexpr const char* digits = "0123456789ABCDEF";
      encoded += {'%', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return encoded;
}

std::string meant(const Tiers& tiers, const std::string& given) {
  std::string decoded = percent_decoded(given);
  return decoded != given && tiers.find(decoded).ok() ? std::move(decoded) : given;
}

}  // namespace penstock::cli
