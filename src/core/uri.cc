#include "core/uri.h"

#include <algorithm>
#include <optional>

namespace penstock::core {
namespace {

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// The scheme in front of the first colon, or nothing.
std::string_view scheme_of(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon < 2 || !is_lower(text[0])) return {};
  const std::string_view scheme = text.substr(0, colon);
  const bool valid = std::all_of(scheme.begin(), scheme.end(),
                                 [](char c) { return is_lower(c) || is_digit(c) || c == '+' || c == '-'; });
  return valid ? scheme : std::string_view{};
}

std::optional<int> hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded.push_back(text[at]);
      continue;
    }
    if (text.size() - at < 3) return std::nullopt;
    const auto high = hex_value(text[at + 1]);
    const auto low = hex_value(text[at + 2]);
    if (!high || !low) return std::nullopt;
    decoded.push_back(static_cast<char>(*high * 16 + *low));
    at += 2;
  }
  return decoded;
}

// What follows "file:" without the authority, which may be empty or this machine; nothing if it is another machine.
std::optional<std::string_view> file_part(std::string_view rest) {
  if (!rest.starts_with("//")) return rest;
  rest.remove_prefix(2);
  if (rest.starts_with("localhost/")) rest.remove_prefix(std::string_view("localhost").size());
  if (!rest.starts_with("/")) return std::nullopt;
  return rest;
}

Error unusable(std::string_view text, const std::string& why, const std::string& hint) {
  return {Code::invalid_argument, 0, "\"" + std::string(text) + "\" can't name a store: " + why, hint};
}

Result<Uri> checked(std::string_view text, std::string_view scheme, std::string name) {
  if (name.empty()) return unusable(text, "it is empty", "give a path, or a name after the scheme");
  if (name.find('\0') != std::string::npos) return unusable(text, "it has a zero byte in it", "remove the zero byte");
  return Uri{std::string(scheme), std::move(name)};
}

Error unknown_scheme(std::string_view scheme, std::span<const std::string_view> schemes) {
  std::string known = "file:";
  for (const std::string_view name : schemes) {
    if (name != "file") known.append(", ").append(name).append(":");
  }
  return {Code::unknown_scheme, 0, "no engine serves the scheme \"" + std::string(scheme) + ":\"",
          "known schemes: " + known + "; write a path that looks like a URI as ./" + std::string(scheme) + "://..."};
}

}  // namespace

Result<Uri> parse_uri(std::string_view text, std::span<const std::string_view> schemes) {
  const std::string_view scheme = scheme_of(text);
  const bool file = scheme == "file";
  if (!file && (scheme.empty() || std::find(schemes.begin(), schemes.end(), scheme) == schemes.end())) {
    if (!scheme.empty() && text.substr(scheme.size() + 1).starts_with("//")) return unknown_scheme(scheme, schemes);
    return checked(text, "file", std::string(text));
  }

  std::string_view rest = text.substr(scheme.size() + 1);
  if (file) {
    const auto part = file_part(rest);
    if (!part)
      return unusable(text, "it names another machine", "use file:PATH or file:///PATH, and mount the machine");
    rest = *part;
  } else if (rest.starts_with("//")) {
    rest.remove_prefix(2);
  }
  auto name = percent_decoded(rest);
  if (!name) return unusable(text, "% is not followed by two hexadecimal digits", "write % itself as %25");
  return checked(text, scheme, std::move(*name));
}

}  // namespace penstock::core
