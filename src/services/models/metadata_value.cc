#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "penstock/models.h"
#include "services/models/gguf_value.h"

namespace penstock {

using models::ValueType;

namespace {

constexpr std::size_t piece_bytes = 16 << 10;

// Turns values into JSON, and takes no memory for it.
class ValueWriter {
 public:
  using Take = std::function<void(std::string_view piece)>;

  // REQUIRES: the bytes are values that were checked.
  ValueWriter(std::string_view bytes, const Take& take) : bytes_(bytes), take_(take) {}
  void finish() {
    if (used_ != 0) take_({piece_.data(), std::exchange(used_, 0)});
  }
  ValueWriter(const ValueWriter&) = delete;
  ValueWriter& operator=(const ValueWriter&) = delete;

  void write(ValueType type) {
    switch (type) {
      case ValueType::u8:
        return write_number<std::uint8_t>();
      case ValueType::i8:
        return write_number<std::int8_t>();
      case ValueType::u16:
        return write_number<std::uint16_t>();
      case ValueType::i16:
        return write_number<std::int16_t>();
      case ValueType::u32:
        return write_number<std::uint32_t>();
      case ValueType::i32:
        return write_number<std::int32_t>();
      case ValueType::u64:
        return write_number<std::uint64_t>();
      case ValueType::i64:
        return write_number<std::int64_t>();
      case ValueType::f32:
        return write_float<float>();
      case ValueType::f64:
        return write_float<double>();
      case ValueType::boolean:
        add(number<std::uint8_t>() == 1 ? "true" : "false");
        return;
      case ValueType::string:
        return write_string();
      case ValueType::array:
        return write_array();
    }
  }

 private:
  // REQUIRES: it is a few bytes.
  void add(std::string_view json) {
    if (json.size() > piece_.size() - used_) finish();
    std::memcpy(piece_.data() + used_, json.data(), json.size());
    used_ += json.size();
  }

  // As on this machine, which is little endian as the file is.
  template <typename T>
  T number() {
    T value{};
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }

  template <typename T>
  void write_number() {
    char text[24];
    add({text, std::to_chars(std::begin(text), std::end(text), number<T>()).ptr});
  }

  // As short as it can be without being another number; a fraction also where it is whole.
  template <typename T>
  void write_float() {
    const T value = number<T>();
    if (!std::isfinite(value)) {
      add("null");
      return;
    }
    char text[32];
    const std::string_view digits(text, std::to_chars(std::begin(text), std::end(text), value).ptr - text);
    add(digits);
    if (digits.find_first_of(".e") == std::string_view::npos) add(".0");
  }

  void write_string() {
    const auto length = number<std::uint64_t>();
    const std::string_view text = bytes_.substr(0, length);
    bytes_.remove_prefix(length);
    add("\"");
    for (const char c : text) write_character(c);
    add("\"");
  }

  void write_character(char c) {
    constexpr std::string_view digits = "0123456789abcdef", meanings = "\b\f\n\r\t\"\\", letters = "bfnrt\"\\";
    const std::size_t which = c == '"' || c == '\\' || is_control(c) ? meanings.find(c) : std::string_view::npos;
    if (which != std::string_view::npos) {
      add("\\");
      add(letters.substr(which, 1));
    } else if (is_control(c)) {
      add("\\u00");
      add(digits.substr(static_cast<std::size_t>(c) >> 4, 1));
      add(digits.substr(c & 15, 1));
    } else {
      add({&c, 1});
    }
  }
  static bool is_control(char c) { return static_cast<unsigned char>(c) < ' '; }

  void write_array() {
    const auto type = static_cast<ValueType>(number<std::uint32_t>());
    const auto count = number<std::uint64_t>();
    add("[");
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i != 0) add(",");
      write(type);
    }
    add("]");
  }

  std::string_view bytes_;
  const Take& take_;
  std::array<char, piece_bytes> piece_;
  std::size_t used_ = 0;
};

}  // namespace

void MetadataValue::write(const std::function<void(std::string_view)>& take) const {
  if (type_ != gguf_string) {
    ValueWriter writer(bytes_, take);
    writer.write(static_cast<ValueType>(type_));
    writer.finish();
    return;
  }
  for (std::string_view left = bytes_; !left.empty(); left.remove_prefix(std::min(left.size(), piece_bytes))) {
    take(left.substr(0, piece_bytes));
  }
}

std::string MetadataValue::text() const {
  if (type_ == gguf_string) return bytes_;
  std::string all;
  write([&](std::string_view piece) { all += piece; });
  return all;
}

}  // namespace penstock
