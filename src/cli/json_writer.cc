#include "json_writer.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

namespace penstock::cli {

namespace {

bool needs_escape(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == '"' || c == '\\';
}

}  // namespace

void JsonWriter::flush() {
  std::fwrite(buffer_.data(), 1, used_, stdout);
  used_ = 0;
}

void JsonWriter::add(std::string_view bytes) {
  if (bytes.size() > buffer_.size() - used_) flush();
  if (bytes.size() > buffer_.size()) {
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  } else {
    std::memcpy(buffer_.data() + used_, bytes.data(), bytes.size());
    used_ += bytes.size();
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

}  // namespace penstock::cli
