#include "json_writer.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

namespace penstock::cli {

namespace {

constexpr std::size_t buffer_bytes = 64 << 10;

bool needs_escape(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == '"' || c == '\\';
}

}  // namespace

void JsonWriter::flush() {
  std::fwrite(buffer_.data(), 1, buffer_.size(), stdout);
  buffer_.clear();
}

void JsonWriter::add(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > buffer_bytes) flush();
  if (bytes.size() > buffer_bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  } else {
    if (buffer_.capacity() < buffer_bytes) buffer_.reserve(buffer_bytes);
    buffer_ += bytes;
  }
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  add(json);
  return *this;
}

JsonWriter& JsonWriter::number(std::uint64_t value) {
  char text[24];
  add({text, std::to_chars(std::begin(text), std::end(text), value).ptr});
  return *this;
}

JsonWriter& JsonWriter::text(std::string_view text) {
  return raw("\"").piece(text).raw("\"");
}

JsonWriter& JsonWriter::piece(std::string_view text) {
  while (!text.empty()) {
    const auto plain = static_cast<std::size_t>(std::ranges::find_if(text, needs_escape) - text.begin());
    add(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    constexpr std::string_view digits = "0123456789abcdef";
    const auto c = static_cast<unsigned char>(text[0]);
    const char control[] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
    const char other[] = {'\\', text[0]};
    add(c < ' ' ? std::string_view(control, sizeof control) : std::string_view(other, sizeof other));
    text.remove_prefix(1);
  }
  return *this;
}

JsonWriter& JsonWriter::value(const Json& value) {
  return raw(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace penstock::cli
