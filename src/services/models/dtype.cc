#include <algorithm>
#include <array>

#include "services/models/contents.h"

namespace penstock {

namespace {

struct Row {
  std::string_view name;
  std::uint32_t bits;
};
// In the order of DType.
constexpr std::array<Row, 22> dtypes = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(dtypes.size() == static_cast<std::size_t>(DType::u64) + 1);

}  // namespace

std::string_view dtype_name(DType dtype) {
  return dtypes[static_cast<std::size_t>(dtype)].name;
}

std::uint32_t dtype_bits(DType dtype) {
  return dtypes[static_cast<std::size_t>(dtype)].bits;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto found = std::ranges::find(dtypes, name, &Row::name);
  if (found == dtypes.end()) return std::nullopt;
  return static_cast<DType>(found - dtypes.begin());
}

std::string_view model_format_name(ModelFormat format) {
  return format == ModelFormat::gguf ? "gguf" : "safetensors";
}

namespace models {

Error broken(std::string message) {
  return {.code = Code::invalid_argument,
          .message = std::move(message),
          .hint = "the file is damaged: download or save it again"};
}

Error ends_early(std::string message) {
  return {.code = Code::truncated,
          .message = std::move(message),
          .hint = "the file is incomplete: download or save it again"};
}

Error in_file(const std::string& path, Error error) {
  error.message = path + ": " + error.message;
  return error;
}

std::string in_quotes(std::string_view name) {
  constexpr std::size_t longest = 200;
  if (name.size() <= longest) return "\"" + std::string(name) + "\"";
  std::size_t end = longest;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;  // not within a character
  return "\"" + std::string(name.substr(0, end)) + "…\"";
}

Result<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::uint64_t> shape) {
  // Beside a dimension of 0 the others count too: frameworks multiply them for strides, as signed numbers.
  const bool is_empty = std::ranges::find(shape, 0U) != shape.end();
  std::uint64_t bits = dtype_bits(dtype);
  for (const std::uint64_t length : shape) {
    if (length != 0 && __builtin_mul_overflow(bits, length, &bits)) {
      return broken(std::string("its shape has more elements than can be counted") +
                    (is_empty ? " beside a dimension of 0" : ""));
    }
  }
  if (is_empty) return std::uint64_t{0};
  if (bits % 8 != 0) {
    return broken("its shape fills " + std::to_string(bits) + " bits of " + std::string(dtype_name(dtype)) +
                  ", not a whole number of bytes");
  }
  return bits / 8;
}

}  // namespace models
}  // namespace penstock
