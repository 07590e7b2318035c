#include "services/models/gguf.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "services/models/ggml_types.h"
#include "services/models/utf8.h"

namespace penstock::models {
namespace {

constexpr std::uint32_t oldest_version = 2;
constexpr std::uint32_t newest_version = 3;
constexpr std::size_t name_limit_bytes = 64;  // with a zero byte that is not written
constexpr std::size_t key_limit_bytes = 65'535;
constexpr std::uint32_t gguf_dimension_limit = 4;
constexpr int array_depth_limit = 4;
constexpr std::uint32_t default_alignment = 32;
constexpr std::uint32_t alignment_limit = 1 << 30;
constexpr std::string_view alignment_key = "general.alignment";
constexpr std::string_view split_key = "split.count";

enum class ValueType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
constexpr std::uint32_t value_types = 13;
// The least that a value of each type takes.
constexpr std::uint64_t least_bytes[value_types] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

// Takes values from the front of the bytes. What is not there is either behind the part that was read (more is wanted)
// or behind the end of the file (broken).
class Reader {
 public:
  Reader(std::string_view front, std::uint64_t file_bytes) : front_(front), file_bytes_(file_bytes) {}

  std::uint64_t position() const { return position_; }
  bool wants_more() const { return wants_more_; }
  std::uint64_t left_in_file() const { return file_bytes_ - position_; }

  // Whether that many bytes can be taken now; says why not otherwise.
  Status need(std::uint64_t size, std::string_view what) {
    if (size > left_in_file()) return ends_early("the file ends within " + std::string(what));
    if (size > front_.size() - position_) {
      wants_more_ = true;
      return ends_early("more is wanted");
    }
    return {};
  }
  template <typename T>
  Status take(T& value, std::string_view what) {
    if (Status status = need(sizeof value, what); !status) return status;
    // Byte by byte: the file is little endian whatever the machine is.
    std::uint64_t bits = 0;
    for (std::size_t i = sizeof value; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(front_[position_ + i]);
    position_ += sizeof value;
    if constexpr (sizeof value == 8) {
      value = std::bit_cast<T>(bits);
    } else if constexpr (sizeof value == 4) {
      value = std::bit_cast<T>(static_cast<std::uint32_t>(bits));
    } else {
      value = static_cast<T>(bits);
    }
    return {};
  }
  Status take_text(std::string& text, std::string_view what) {
    std::uint64_t length = 0;
    if (Status status = take(length, what); !status) return status;
    if (Status status = need(length, what); !status) return status;
    text = front_.substr(position_, length);
    position_ += length;
    return is_utf8(text) ? Status() : broken(std::string(what) + " is not UTF-8");
  }

 private:
  const std::string_view front_;
  const std::uint64_t file_bytes_;
  std::uint64_t position_ = 0;
  bool wants_more_ = false;
};

std::string json_text(std::string_view text) {
  // Vocabularies have hundreds of thousands of words, nearly all of them plain.
  const bool is_plain = std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; });
  if (is_plain) return in_quotes(text);
  return nlohmann::json(text).dump();
}

template <typename T>
Status take_number(Reader& reader, std::string& json) {
  T value{};
  if (Status status = reader.take(value, "a value of the metadata"); !status) return status;
  if constexpr (std::is_floating_point_v<T>) {
    json += nlohmann::json(value).dump();
  } else {
    json += std::to_string(value);
  }
  return {};
}

Status take_boolean(Reader& reader, std::string& json) {
  std::uint8_t value = 0;
  if (Status status = reader.take(value, "a value of the metadata"); !status) return status;
  if (value > 1) return broken("a boolean that is neither 0 nor 1");
  json += value == 1 ? "true" : "false";
  return {};
}

Status take_value(Reader& reader, ValueType type, int depth, std::string& json);

Status take_array(Reader& reader, int depth, std::string& json) {
  if (depth == array_depth_limit) return broken("arrays within arrays are nested too deeply");
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  if (Status status = reader.take(type, "an array of the metadata"); !status) return status;
  if (Status status = reader.take(count, "an array of the metadata"); !status) return status;
  if (type >= value_types) return broken("an array of the unknown type " + std::to_string(type));
  if (count > reader.left_in_file() / least_bytes[type]) {
    return ends_early("an array of " + std::to_string(count) + " values is longer than the file");
  }
  json += '[';
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i != 0) json += ',';
    if (Status status = take_value(reader, static_cast<ValueType>(type), depth + 1, json); !status) return status;
  }
  json += ']';
  return {};
}

Status take_value(Reader& reader, ValueType type, int depth, std::string& json) {
  switch (type) {
    case ValueType::u8:
      return take_number<std::uint8_t>(reader, json);
    case ValueType::i8:
      return take_number<std::int8_t>(reader, json);
    case ValueType::u16:
      return take_number<std::uint16_t>(reader, json);
    case ValueType::i16:
      return take_number<std::int16_t>(reader, json);
    case ValueType::u32:
      return take_number<std::uint32_t>(reader, json);
    case ValueType::i32:
      return take_number<std::int32_t>(reader, json);
    case ValueType::f32:
      return take_number<float>(reader, json);
    case ValueType::boolean:
      return take_boolean(reader, json);
    case ValueType::string: {
      std::string text;
      if (Status status = reader.take_text(text, "a string of the metadata"); !status) return status;
      json += json_text(text);
      return {};
    }
    case ValueType::array:
      return take_array(reader, depth, json);
    case ValueType::u64:
      return take_number<std::uint64_t>(reader, json);
    case ValueType::i64:
      return take_number<std::int64_t>(reader, json);
    case ValueType::f64:
      return take_number<double>(reader, json);
  }
  return broken("a value of an unknown type");
}

class Parser {
 public:
  Parser(std::string_view front, std::uint64_t file_bytes) : reader_(front, file_bytes), file_bytes_(file_bytes) {}

  bool wants_more() const { return reader_.wants_more(); }

  Status parse() {
    if (Status status = take_start(); !status) return status;
    for (std::uint64_t i = 0; i < pair_count_; ++i) {
      if (Status status = take_pair(); !status) return status;
    }
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      if (Status status = take_tensor(); !status) return status;
    }
    return finish();
  }

  Contents contents;

 private:
  Status take_start() {
    char magic[4] = {};
    for (char& letter : magic) {
      if (Status status = reader_.take(letter, "the magic"); !status) return status;
    }
    if (std::string_view(magic, sizeof magic) != gguf_magic) return broken("it does not begin with GGUF");
    std::uint32_t version = 0;
    if (Status status = reader_.take(version, "the version"); !status) return status;
    if (version < oldest_version || version > newest_version) {
      const bool swapped = __builtin_bswap32(version) <= newest_version && version != 0;
      return Error{.code = Code::unsupported,
                   .message = swapped ? "it is a big-endian GGUF file"
                                      : "it is of GGUF version " + std::to_string(version) + "; 2 and 3 are known",
                   .hint = "convert it"};
    }
    if (Status status = reader_.take(tensor_count_, "the number of tensors"); !status) return status;
    if (Status status = reader_.take(pair_count_, "the number of metadata"); !status) return status;
    constexpr std::uint64_t least_tensor_bytes = 24, least_pair_bytes = 13;
    if (tensor_count_ > reader_.left_in_file() / least_tensor_bytes) {
      return ends_early("its " + std::to_string(tensor_count_) + " tensors are more than the file has room for");
    }
    if (pair_count_ > reader_.left_in_file() / least_pair_bytes) {
      return ends_early("its " + std::to_string(pair_count_) + " metadata are more than the file has room for");
    }
    return {};
  }

  Status take_pair() {
    std::string key;
    if (Status status = reader_.take_text(key, "a key of the metadata"); !status) return status;
    if (key.empty() || key.size() > key_limit_bytes)
      return broken("a key of the metadata has " + std::to_string(key.size()) + " bytes; 1 to 65535 are allowed");
    std::uint32_t type = 0;
    if (Status status = reader_.take(type, "the type of a value"); !status) return status;
    if (type >= value_types) {
      return broken("the metadata " + in_quotes(key) + " is of the unknown type " + std::to_string(type));
    }
    std::string value;
    Status taken = static_cast<ValueType>(type) == ValueType::string
                       ? reader_.take_text(value, "the metadata " + in_quotes(key))
                       : take_value(reader_, static_cast<ValueType>(type), 0, value);
    if (!taken) return named("the metadata " + in_quotes(key), std::move(taken).error());
    if (key == alignment_key) {
      if (Status status = set_alignment(static_cast<ValueType>(type), value); !status) return status;
    }
    if (key == split_key && value != "0" && value != "1") {
      return Error{.code = Code::unsupported,
                   .message = "it is one of " + value + " files of a split GGUF model",
                   .hint = "merge them first: llama-gguf-split --merge"};
    }
    if (!contents.metadata.emplace(key, std::move(value)).second) {
      return broken("the metadata " + in_quotes(key) + " is there twice");
    }
    return {};
  }

  Status set_alignment(ValueType type, const std::string& value) {
    const std::uint64_t number = type == ValueType::u32 ? std::stoull(value) : 0;
    if (!std::has_single_bit(number) || number > alignment_limit) {
      return broken("general.alignment is not a power of two, as u32");
    }
    alignment_ = number;
    return {};
  }

  Status take_tensor() {
    TensorInfo tensor;
    if (Status status = reader_.take_text(tensor.name, "the name of a tensor"); !status) return status;
    if (tensor.name.empty() || tensor.name.size() >= name_limit_bytes) {
      return broken("the name of a tensor has " + std::to_string(tensor.name.size()) + " bytes; 1 to 63 are allowed");
    }
    if (!names_.insert(tensor.name).second) return broken("tensor " + in_quotes(tensor.name) + " is there twice");
    const std::string what = "tensor " + in_quotes(tensor.name);
    if (Status status = take_shape(tensor); !status) return named(what, std::move(status).error());
    std::uint32_t type = 0;
    if (Status status = reader_.take(type, what); !status) return status;
    if (Status status = reader_.take(tensor.offset, what); !status) return status;
    if (Status status = set_type(tensor, type); !status) return named(what, std::move(status).error());
    contents.tensors.push_back(std::move(tensor));
    return {};
  }

  // The file has the fastest dimension first.
  Status take_shape(TensorInfo& tensor) {
    std::uint32_t dimensions = 0;
    if (Status status = reader_.take(dimensions, "its dimensions"); !status) return status;
    if (dimensions > gguf_dimension_limit) {
      return broken("it has " + std::to_string(dimensions) + " dimensions; 4 are allowed");
    }
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      std::uint64_t length = 0;
      if (Status status = reader_.take(length, "its dimensions"); !status) return status;
      tensor.shape.insert(tensor.shape.begin(), length);
    }
    return {};
  }

  static Error unknown_type(std::uint32_t id) {
    for (const RemovedType& type : removed_ggml_types) {
      if (type.id != id) continue;
      return {.code = Code::unsupported,
              .message = "its type " + std::string(type.name) + " is none of ggml's any more",
              .hint = "convert the model with a recent llama.cpp"};
    }
    return {.code = Code::unsupported,
            .message = "its type " + std::to_string(id) + " is not known",
            .hint = "convert the model to a type of ggml's that is"};
  }

  // A quantized tensor is rows of bytes.
  static Status set_type(TensorInfo& tensor, std::uint32_t id) {
    const GgmlType* const type = find_ggml_type(id);
    if (type == nullptr) return unknown_type(id);
    tensor.dtype = type->plain.value_or(DType::u8);
    if (!type->plain) {
      tensor.quantization = type->name;
      if (tensor.shape.empty()) tensor.shape.push_back(1);
      std::uint64_t& row = tensor.shape.back();
      if (row % type->block_elements != 0) {
        return broken("its rows of " + std::to_string(row) + " elements are no whole blocks of " +
                      std::to_string(type->block_elements) + " of " + std::string(type->name));
      }
      if (__builtin_mul_overflow(row / type->block_elements, type->block_bytes, &row)) {
        return broken("its shape has more elements than can be counted");
      }
    }
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return bytes.error();
    tensor.size_bytes = *bytes;
    return {};
  }

  // Where the data begins, and that every tensor lies in it and on no other.
  Status finish() {
    const std::uint64_t padding = (alignment_ - reader_.position() % alignment_) % alignment_;
    if (contents.tensors.empty()) {
      contents.data_offset = std::min(reader_.position() + padding, file_bytes_);
      return {};
    }
    if (padding > reader_.left_in_file()) return ends_early("the file ends before its data begins");
    contents.data_offset = reader_.position() + padding;
    const std::uint64_t data_bytes = file_bytes_ - contents.data_offset;
    std::ranges::sort(contents.tensors, [](const TensorInfo& a, const TensorInfo& b) {
      return std::tie(a.offset, a.size_bytes, a.name) < std::tie(b.offset, b.size_bytes, b.name);
    });
    std::uint64_t end = 0;
    for (TensorInfo& tensor : contents.tensors) {
      if (Status status = check_place(tensor, end, data_bytes); !status) {
        return named("tensor " + in_quotes(tensor.name), std::move(status).error());
      }
      end = tensor.offset + tensor.size_bytes;
      tensor.offset += contents.data_offset;
    }
    return {};
  }

  Status check_place(const TensorInfo& tensor, std::uint64_t end, std::uint64_t data_bytes) const {
    if (tensor.offset % alignment_ != 0) {
      return broken("its offset " + std::to_string(tensor.offset) + " is no multiple of the alignment " +
                    std::to_string(alignment_));
    }
    if (tensor.offset > data_bytes || tensor.size_bytes > data_bytes - tensor.offset) {
      return ends_early("its " + std::to_string(tensor.size_bytes) + " bytes at " + std::to_string(tensor.offset) +
                        " reach past the end of the data, of which the file has " + std::to_string(data_bytes));
    }
    if (tensor.offset < end) {
      return broken("it overlaps the one before it: it begins at " + std::to_string(tensor.offset) + ", before " +
                    std::to_string(end));
    }
    return {};
  }

  static Error named(const std::string& what, Error error) {
    error.message = what + ": " + error.message;
    return error;
  }

  Reader reader_;
  const std::uint64_t file_bytes_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t pair_count_ = 0;
  std::uint64_t alignment_ = default_alignment;
  std::set<std::string> names_;
};

}  // namespace

Result<std::optional<Contents>> parse_gguf(std::string_view front, std::uint64_t file_bytes) {
  Parser parser(front, file_bytes);
  Status parsed = parser.parse();
  if (parsed) return std::optional(std::move(parser.contents));
  if (parser.wants_more()) return std::optional<Contents>();
  return std::move(parsed).error();
}

}  // namespace penstock::models
