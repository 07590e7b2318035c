#include "tier_names.h"

#include <algorithm>

namespace penstock::cli {

namespace {

constexpr std::string_view mark = "./";  // no name of a unit begins so

bool is_utf8(const std::string& text) {
  const Json json = text;
  return json.dump(-1, ' ', false, Json::error_handler_t::ignore) ==
         json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
}

std::string encoded(const std::string& name) {
  std::string text;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && c != '%' && !is_control(c)) {
      text += c;
    } else {
      constexpr const char* digits = "0123456789ABCDEF";
      text += {'%', digits[byte >> 4], digits[byte & 15]};
    }
  }
  return text;
}

bool is_plain(const std::string& name) {
  return is_utf8(name) && percent_decoded(name) == name;
}

}  // namespace

Json name_json(const std::string& name) {
  return is_plain(name) ? name : std::string(mark) + encoded(name);
}

Json path_json(const std::string& path) {
  return is_plain(path) ? path : encoded(path);
}

std::string shown_name(const std::string& name) {
  return is_utf8(name) && std::ranges::none_of(name, is_control) ? name : std::string(mark) + encoded(name);
}

std::string name_from(const std::string& given) {
  return given.starts_with(mark) ? percent_decoded(given.substr(mark.size())) : given;
}

std::string unmarked(const std::string& given) {
  std::string decoded = percent_decoded(given);
  return encoded(decoded) == given ? std::move(decoded) : given;
}

std::string meant(const Tiers& tiers, const std::string& given) {
  if (given.starts_with(mark) || tiers.find(given).ok()) return name_from(given);
  std::string decoded = unmarked(given);
  return decoded != given && tiers.find(decoded).ok() ? std::move(decoded) : given;
}

}  // namespace penstock::cli
