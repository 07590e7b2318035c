// JsonWriter: JSON that is written to standard output while it is made: what is long need not be in memory twice.
//
// It takes no memory: whoever has all he needs when he begins will come to the end, and no error follows half an
// object.
//
// Thread safety: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace penstock::cli {

class JsonWriter {
 public:
  JsonWriter() = default;
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  // As it is: brackets, commas, keys, what Output made of a value.
  JsonWriter& raw(std::string_view json);
  JsonWriter& number(std::uint64_t value);
  // In quotes. REQUIRES: it is UTF-8, as all texts of models are.
  JsonWriter& text(std::string_view text);
  // A piece of one, without them.
  JsonWriter& piece(std::string_view text);
  // Writes what is left. Nothing else does.
  void finish() { flush(); }

 private:
  void flush();
  void add(std::string_view bytes);

  std::array<char, 64 << 10> buffer_;
  std::size_t used_ = 0;
};

}  // namespace penstock::cli
