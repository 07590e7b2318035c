// UsualEntry: what the header of a safetensors file says of one tensor, as nearly every writer writes it: dtype, shape
// and data_offsets in this order, with a space after colons and commas or none. Headers of models with many tensors are
// hardly anything else, and nothing can be loaded before they are read. What is written in another way, or is wrong, is
// no such entry, and is for JsonReader.
//
// Thread safety: one thread's. Lifetime: the JSON outlives it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

namespace penstock::models {

class UsualEntry {
 public:
  explicit UsualEntry(std::string_view json) : at_(json.data()), end_(json.data() + json.size()) {}

  // False: it is none, and what the others tell means nothing.
  bool read() {
    skip_space();
    return take("{\"dtype\":") && take_dtype() && take(",") && take("\"shape\":") && take_shape() && take(",") &&
           take("\"data_offsets\":") && take("[") && take_number(offsets_[0]) && take(",") &&
           take_number(offsets_[1]) && take("]") && take("}");
  }
  std::string_view dtype() const { return dtype_; }
  std::span<const std::uint64_t> shape() const { return std::span(shape_).first(dimensions_); }
  std::uint64_t begin() const { return offsets_[0]; }
  std::uint64_t end() const { return offsets_[1]; }
  std::string_view left() const { return {at_, static_cast<std::size_t>(end_ - at_)}; }

 private:
  void skip_space() {
    if (at_ != end_ && *at_ == ' ') ++at_;
  }
  template <std::size_t size>  // known when compiling: a comparison or two instead of a call
  bool take(const char (&text)[size]) {
    constexpr std::size_t length = size - 1;
    if (left().size() < length || std::memcmp(at_, text, length) != 0) return false;
    at_ += length;
    skip_space();
    return true;
  }
  bool take_dtype() {
    constexpr std::size_t longest = 16;
    if (left().size() < longest + 2 || *at_ != '"') return false;
    const void* const quote = std::memchr(at_ + 1, '"', longest);
    if (quote == nullptr) return false;
    const auto* const last = static_cast<const char*>(quote);
    dtype_ = {at_ + 1, last};
    at_ = last + 1;
    return true;
  }
  bool take_shape() {
    if (!take("[")) return false;
    if (take("]")) return true;
    do {
      if (dimensions_ == shape_.size() || !take_number(shape_[dimensions_])) return false;
      ++dimensions_;
    } while (take(","));
    return take("]");
  }
  bool take_number(std::uint64_t& number) {
    const char* const begin = at_;
    const char* at = at_;
    number = 0;
    for (; at != end_ && *at >= '0' && *at <= '9'; ++at) number = 10 * number + static_cast<std::uint64_t>(*at - '0');
    at_ = at;
    const auto digits = at - begin;
    return digits >= 1 && digits <= std::numeric_limits<std::uint64_t>::digits10 && (digits == 1 || *begin != '0');
  }

  const char* at_;
  const char* const end_;
  std::string_view dtype_;
  std::array<std::uint64_t, 8> shape_ = {};
  std::size_t dimensions_ = 0;
  std::array<std::uint64_t, 2> offsets_ = {};
};

}  // namespace penstock::models
