#include "services/rows/npy.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace penstock::rows {
namespace {

constexpr std::string_view magic = "\x93NUMPY";
// NumPy itself takes no more than 10,000 unless it is told to trust the file.
constexpr std::uint64_t header_limit_bytes = 64 << 10;
constexpr std::size_t dimension_limit = 64;

Error broken_npy(std::string message) {
  return {Code::invalid_argument, 0, std::move(message), "save the array again with numpy.save"};
}

Error unsupported_npy(std::string message, std::string hint) {
  return {Code::unsupported, 0, std::move(message), std::move(hint)};
}

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// The literal, as far as headers have it: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class Literal {
 public:
  explicit Literal(std::string_view text) : rest_(text) {}

  bool take(char wanted) {
    skip_blanks();
    if (rest_.empty() || rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool next_is(char wanted) {
    skip_blanks();
    return !rest_.empty() && rest_.front() == wanted;
  }
  std::optional<std::string_view> take_string() {
    skip_blanks();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) return std::nullopt;
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view string = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return string;
  }
  std::optional<bool> take_truth() {
    skip_blanks();
    for (const bool truth : {false, true}) {
      const std::string_view word = truth ? "True" : "False";
      if (!rest_.starts_with(word)) continue;
      rest_.remove_prefix(word.size());
      return truth;
    }
    return std::nullopt;
  }
  std::optional<std::uint64_t> take_number() {
    skip_blanks();
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc()) return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    if (rest_.starts_with('L')) rest_.remove_prefix(1);  // as Python 2 wrote them
    return number;
  }
  bool ended() {
    skip_blanks();
    return rest_.empty();
  }

 private:
  void skip_blanks() {
    const std::size_t blanks = std::min(rest_.find_first_not_of(" \t\n\r"), rest_.size());
    rest_.remove_prefix(blanks);
  }
  std::string_view rest_;
};

Result<std::vector<std::uint64_t>> take_shape(Literal& literal) {
  const Error wrong = broken_npy("its header has no shape as (3, 4)");
  std::vector<std::uint64_t> shape;
  if (!literal.take('(')) return wrong;
  while (!literal.take(')')) {
    if (shape.size() == dimension_limit)
      return unsupported_npy("it has more dimensions than NumPy computes with", "save an array of fewer");
    const auto number = literal.take_number();
    if (!number) return wrong;
    shape.push_back(*number);
    const bool comma = literal.take(',');
    if (!comma && (shape.size() == 1 || !literal.next_is(')'))) return wrong;
  }
  return shape;
}

// "<f4", "|u1", "|S7", ">U3", "<M8[ns]"
Result<std::uint64_t> bytes_of(std::string_view dtype) {
  const Error wrong = broken_npy("its header has no type \"" + std::string(dtype.substr(0, 20)) + "\"");
  if (dtype.size() < 2 || std::string_view("<>|=").find(dtype[0]) == std::string_view::npos) return wrong;
  const char kind = dtype[1];
  if (kind == 'O') {  // NumPy writes no size behind it
    return unsupported_npy("it is an array of Python objects, which can't be read as rows",
                           "save an array of numbers, or of strings of one length");
  }
  if (std::string_view("biufcSUVmM").find(kind) == std::string_view::npos) return wrong;
  std::uint64_t count = 0;
  const char* const end = dtype.data() + dtype.size();
  const auto [last, error] = std::from_chars(dtype.data() + 2, end, count);
  const std::string_view unit(last, static_cast<std::size_t>(end - last));
  const bool may_have_unit = kind == 'm' || kind == 'M';
  const bool is_unit = unit.size() > 2 && unit.front() == '[' && unit.back() == ']';
  if (error != std::errc() || !(unit.empty() || (may_have_unit && is_unit))) return wrong;
  constexpr std::uint64_t bytes_a_character = 4;
  if (kind == 'U' && __builtin_mul_overflow(count, bytes_a_character, &count)) return wrong;
  if (count == 0) return unsupported_npy("its elements have no bytes", "save an array of numbers");
  return count;
}

// One name for each type. Where bytes have no order NumPy writes "|"; elsewhere it takes "|" and "=" for that of the
// machine, and all that we run on are little-endian.
std::string usual_name(std::string dtype, std::uint64_t element_bytes) {
  const bool has_order = element_bytes > 1 && std::string_view("iufcUmM").find(dtype[1]) != std::string_view::npos;
  if (!has_order) {
    dtype[0] = '|';
  } else if (dtype[0] != '>') {
    dtype[0] = '<';
  }
  return dtype;
}

struct Header {
  std::optional<std::string> dtype;
  std::optional<bool> fortran_order;
  std::optional<std::vector<std::uint64_t>> shape;
};

Result<Header> parse_literal(std::string_view text) {
  Literal literal(text);
  Header header;
  if (!literal.take('{')) return broken_npy("its header is no dictionary");
  while (!literal.take('}')) {
    const auto key = literal.take_string();
    if (!key || !literal.take(':')) return broken_npy("its header is no dictionary");
    if (*key == "descr" && !header.dtype) {
      if (literal.next_is('[')) return unsupported_npy("its elements have fields", "open it as raw rows");
      const auto dtype = literal.take_string();
      if (!dtype) return broken_npy("its header has no type");
      header.dtype = *dtype;
    } else if (*key == "fortran_order" && !header.fortran_order) {
      header.fortran_order = literal.take_truth();
      if (!header.fortran_order) return broken_npy("its header does not say the order");
    } else if (*key == "shape" && !header.shape) {
      auto shape = take_shape(literal);
      if (!shape) return std::move(shape).error();
      header.shape = std::move(*shape);
    } else {
      return broken_npy("its header has \"" + std::string(key->substr(0, 20)) + "\", twice or unknown");
    }
    if (!literal.take(',') && !literal.next_is('}')) return broken_npy("its header is no dictionary");
  }
  if (!literal.ended()) return broken_npy("something stands behind its header");
  if (!header.dtype || !header.fortran_order || !header.shape) {
    return broken_npy("its header lacks one of descr, fortran_order and shape");
  }
  return header;
}

bool is_same_in_both_orders(const std::vector<std::uint64_t>& shape) {
  return std::ranges::count_if(shape, [](std::uint64_t length) { return length > 1; }) <= 1;
}

}  // namespace

bool begins_as_npy(std::string_view front) {
  return front.starts_with(magic);
}

Result<std::uint64_t> npy_header_bytes(std::string_view front, std::uint64_t file_bytes) {
  constexpr std::size_t length_at = 8;
  if (!begins_as_npy(front)) return broken_npy("it does not begin as .npy files do");
  if (front.size() < npy_front_bytes) {
    return Error{Code::truncated, 0, "it ends within its header", "save the array again with numpy.save"};
  }
  const int major = static_cast<unsigned char>(front[6]);
  const int minor = static_cast<unsigned char>(front[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return unsupported_npy("it has version " + std::to_string(major) + "." + std::to_string(minor) + " of the format",
                           "save it as 1.0, 2.0 or 3.0");
  }
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  const std::uint64_t bytes = length_at + length_bytes + little_endian(front.substr(length_at, length_bytes));
  if (bytes > header_limit_bytes) return unsupported_npy("its header is longer than 64 KiB", "open it as raw rows");
  if (bytes > file_bytes) {
    return Error{Code::truncated, 0, "it ends within its header", "save the array again with numpy.save"};
  }
  return bytes;
}

Result<NpyArray> parse_npy(std::string_view header, std::uint64_t file_bytes) {
  const auto header_bytes = npy_header_bytes(header.substr(0, npy_front_bytes), file_bytes);
  if (!header_bytes) return header_bytes.error();
  if (header.size() < *header_bytes) return broken_npy("its header is longer than what was read of it");
  const std::size_t text_at = header[6] == 1 ? 10 : 12;
  auto parsed = parse_literal(header.substr(text_at, *header_bytes - text_at));
  if (!parsed) return std::move(parsed).error();
  const auto element_bytes = bytes_of(*parsed->dtype);
  if (!element_bytes) return element_bytes.error();
  NpyArray array{.dtype = usual_name(std::move(*parsed->dtype), *element_bytes),
                 .shape = std::move(*parsed->shape),
                 .element_bytes = *element_bytes,
                 .data_offset = *header_bytes,
                 .data_bytes = *element_bytes};
  if (*parsed->fortran_order && !is_same_in_both_orders(array.shape)) {
    return unsupported_npy("it is in Fortran's order, so that its rows are scattered",
                           "save numpy.ascontiguousarray(array)");
  }
  for (const std::uint64_t length : array.shape) {
    // Without those of 0, so that it is found whatever comes first.
    if (length != 0 && __builtin_mul_overflow(array.data_bytes, length, &array.data_bytes)) {
      return broken_npy("its shape has more bytes than can be counted");
    }
  }
  if (std::ranges::find(array.shape, 0U) != array.shape.end()) array.data_bytes = 0;
  if (array.data_bytes > file_bytes - array.data_offset) {
    return Error{Code::truncated, 0,
                 "its header tells of " + std::to_string(array.data_bytes) + " bytes, and " +
                     std::to_string(file_bytes - array.data_offset) + " are there",
                 "copy or save it again"};
  }
  return array;
}

}  // namespace penstock::rows
