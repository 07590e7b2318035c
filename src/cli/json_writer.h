// JsonWriter: JSON that is written to standard output while it is made: what is long need not be in memory twice.
//
// Thread safety: one thread. What is left is written when it is destroyed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "output.h"

namespace penstock::cli {

class JsonWriter {
 public:
  JsonWriter() = default;
  ~JsonWriter() { flush(); }
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  // As it is: brackets, commas, keys.
  JsonWriter& raw(std::string_view json);
  JsonWriter& number(std::uint64_t value);
  // In quotes. REQUIRES: it is UTF-8, as all texts of models are.
  JsonWriter& text(std::string_view text);
  // A piece of one, without them.
  JsonWriter& piece(std::string_view text);
  // File names need not be UTF-8; JSON must be.
  JsonWriter& value(const Json& value);

 private:
  void flush();
  void add(std::string_view bytes);

  std::string buffer_;
};

}  // namespace penstock::cli
