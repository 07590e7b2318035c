#include "services/tiers/names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

namespace penstock::tiers {
namespace {

constexpr std::size_t max_part_bytes = 255;
constexpr std::size_t max_name_bytes = 3500;  // a path may have 4,096

Error refused(std::string_view name, const std::string& why) {
  return {Code::invalid_argument, 0, "\"" + shown(name) + "\" can't name a unit: " + why,
          "give a path below the folder of a tier, such as models/llama.gguf"};
}

}  // namespace

Result<std::string> checked_name(std::string_view name) {
  const std::string_view given = name;
  while (name.ends_with('/')) name.remove_suffix(1);
  if (name.empty()) return refused(given, "it is empty");
  if (name.starts_with('/')) return refused(given, "it is absolute");
  if (name.size() > max_name_bytes) return refused(given, "it is too long");
  if (name.find('\0') != std::string_view::npos) return refused(given, "it has a zero byte in it");
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part == ".") return refused(given, "it has an empty part");
    if (part == "..") return refused(given, "it leaves the folder");
    if (part.size() > max_part_bytes) return refused(given, "a part of it has more than 255 bytes");
    if (begin == 0 && part == own_folder) return refused(given, "that folder is the tier's own");
    begin = end + 1;
  }
  return std::string(name);
}

Status check_tier_name(std::string_view name) {
  constexpr std::size_t most = 64;
  const auto may_stand = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  if (!name.empty() && name.size() <= most && std::ranges::all_of(name, may_stand)) return {};
  return Error{Code::invalid_argument, 0, "\"" + shown(name) + "\" can't name a tier",
               "use at most 64 of a-z, 0-9, - and _"};
}

std::vector<std::string> parents_of(std::string_view name) {
  std::vector<std::string> parents;
  for (std::size_t slash = name.rfind('/'); slash != std::string_view::npos; slash = name.rfind('/')) {
    name = name.substr(0, slash);
    parents.emplace_back(name);
  }
  return parents;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded += text[at];
      continue;
    }
    const std::string_view digits = text.substr(at + 1, 2);
    unsigned value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (digits.size() != 2 || parsed.ptr != digits.data() + 2) return std::nullopt;
    decoded += static_cast<char>(value);
    at += 2;
  }
  return decoded;
}

std::string shown(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) {
      text += c;
    } else {
      std::array<char, 5> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\x%02x", static_cast<unsigned char>(c));
      text += escaped.data();
    }
  }
  return text;
}

std::string count_of_units(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " unit" : " units");
}

Error no_unit(std::string_view name) {
  return {Code::not_found, 0, "there is no unit \"" + shown(name) + "\" in the catalog",
          "see `penstock tier list`, or take it in with `penstock tier import`"};
}

}  // namespace penstock::tiers
