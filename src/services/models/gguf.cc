#include "services/models/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/keyed_hash.h"
#include "services/models/ggml_types.h"
#include "services/models/gguf_value.h"
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
constexpr std::uint64_t least_tensor_bytes = 24, least_pair_bytes = 13;

constexpr std::size_t window_bytes = 1 << 20;

// Takes values from the front of a file, of which it has a window in memory.
class Reader {
 public:
  Reader(const ReadAt& read, std::uint64_t file_bytes) : read_(read), file_bytes_(file_bytes) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left_in_file() const { return file_bytes_ - position_; }

  // Whether that many bytes may be taken; says why not otherwise.
  Status need(std::uint64_t size, std::string_view what) const {
    if (size > left_in_file()) return ends_early("the file ends within " + std::string(what));
    if (size > header_limit_bytes - position_) return broken("its header has more than 100,000,000 bytes");
    return {};
  }
  template <typename T>
  Status take(T& value, std::string_view what) {
    if (Status status = need(sizeof value, what); !status) return status;
    if (sizeof value > in_window().size()) {
      if (Status status = fill(); !status) return status;
    }
    std::memcpy(&value, in_window().data(), sizeof value);
    static_assert(std::endian::native == std::endian::little);
    position_ += sizeof value;
    return {};
  }
  // Adds them to what is there.
  Status take_bytes(std::uint64_t size, std::string& bytes, std::string_view what) {
    if (Status status = need(size, what); !status) return status;
    const std::string_view here = in_window().substr(0, size);
    bytes.append(here);
    position_ += here.size();
    const std::uint64_t left = size - here.size();
    if (left == 0) return {};
    if (left < window_bytes) {
      if (Status status = fill(); !status) return status;
      return take_bytes(left, bytes, what);
    }
    bytes.resize(bytes.size() + left);
    position_ += left;
    return read_(position_ - left, std::span(bytes).last(left));
  }
  Status take_text(std::string& text, std::string_view what) {
    std::uint64_t length = 0;
    if (Status status = take(length, what); !status) return status;
    if (Status status = take_bytes(length, text, what); !status) return status;
    return is_utf8(text) ? Status() : broken(std::string(what) + " is not UTF-8");
  }

 private:
  std::string_view in_window() const {
    const std::uint64_t passed = position_ - window_begin_;
    return passed < window_.size() ? std::string_view(window_).substr(passed) : std::string_view();
  }
  Status fill() {
    window_.resize(std::min<std::uint64_t>(window_bytes, left_in_file()));
    window_begin_ = position_;
    return read_(position_, window_);
  }

  const ReadAt& read_;
  const std::uint64_t file_bytes_;
  std::uint64_t position_ = 0;
  std::string window_;
  std::uint64_t window_begin_ = 0;
};

// Adds a value to `bytes` as it is.
class ValueReader {
 public:
  ValueReader(Reader& reader, std::string& bytes) : reader_(reader), bytes_(bytes) {}

  Status take(ValueType type, int depth = 0) {
    switch (type) {
      case ValueType::boolean:
        return take_booleans(1);
      case ValueType::string:
        return take_string();
      case ValueType::array:
        return take_array(depth);
      default:
        return reader_.take_bytes(least_value_bytes[static_cast<std::size_t>(type)], bytes_, "a value of the metadata");
    }
  }

 private:
  Status take_booleans(std::uint64_t count) {
    const std::size_t begin = bytes_.size();
    if (Status status = reader_.take_bytes(count, bytes_, "a value of the metadata"); !status) return status;
    const auto is_boolean = [](char c) { return c == 0 || c == 1; };
    const bool all_are = std::ranges::all_of(std::string_view(bytes_).substr(begin), is_boolean);
    return all_are ? Status() : broken("a boolean that is neither 0 nor 1");
  }

  Status take_string() {
    constexpr std::string_view what = "a string of the metadata";
    std::uint64_t length = 0;
    if (Status status = reader_.take(length, what); !status) return status;
    add(length);
    const std::size_t begin = bytes_.size();
    if (Status status = reader_.take_bytes(length, bytes_, what); !status) return status;
    return is_utf8(std::string_view(bytes_).substr(begin)) ? Status() : broken(std::string(what) + " is not UTF-8");
  }

  Status take_array(int depth) {
    if (depth == array_depth_limit) return broken("arrays within arrays are nested too deeply");
    std::uint32_t number = 0;
    std::uint64_t count = 0;
    if (Status status = reader_.take(number, "an array of the metadata"); !status) return status;
    if (Status status = reader_.take(count, "an array of the metadata"); !status) return status;
    if (number >= value_types) return broken("an array of the unknown type " + std::to_string(number));
    if (count > reader_.left_in_file() / least_value_bytes[number]) {
      return ends_early("an array of " + std::to_string(count) + " values is longer than the file");
    }
    add(number);
    add(count);
    const auto type = static_cast<ValueType>(number);
    if (type == ValueType::boolean) return take_booleans(count);
    if (type != ValueType::string && type != ValueType::array) {
      return reader_.take_bytes(count * least_value_bytes[number], bytes_, "a value of the metadata");
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      if (Status status = take(type, depth + 1); !status) return status;
    }
    return {};
  }

  template <typename T>
  void add(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  Reader& reader_;
  std::string& bytes_;
};

// Whether no two tensors have one name.
class Names {
 public:
  explicit Names(std::size_t count) : places_(std::bit_ceil(2 * count + 1)) {}
  // False: one of the tensors before it has its name. REQUIRES: it is called for one after the other.
  bool add(const std::vector<TensorInfo>& tensors, std::uint32_t index) {
    const std::size_t last = places_.size() - 1;
    std::size_t place = keyed_hash(tensors[index].name) & last;
    for (; places_[place] != 0; place = (place + 1) & last) {
      if (tensors[places_[place] - 1].name == tensors[index].name) return false;
    }
    places_[place] = index + 1;
    return true;
  }

 private:
  std::vector<std::uint32_t> places_;  // 0: none
};

class Parser {
 public:
  Parser(const ReadAt& read, std::uint64_t file_bytes) : reader_(read, file_bytes), file_bytes_(file_bytes) {}

  Status parse() {
    if (Status status = take_start(); !status) return status;
    for (std::uint64_t i = 0; i < pair_count_; ++i) {
      if (Status status = take_pair(); !status) return status;
    }
    // As many as the rest of a header can hold; then it is known whether they are there.
    contents.tensors.reserve(std::min(tensor_count_, (header_limit_bytes - reader_.position()) / least_tensor_bytes));
    Names names(contents.tensors.capacity());
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      if (Status status = take_tensor(names); !status) return status;
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
    if (tensor_count_ > reader_.left_in_file() / least_tensor_bytes) {
      return ends_early("its " + std::to_string(tensor_count_) + " tensors are more than the file has room for");
    }
    if (pair_count_ > reader_.left_in_file() / least_pair_bytes) {
      return ends_early("its " + std::to_string(pair_count_) + " metadata are more than the file has room for");
    }
    if (pair_count_ > metadata_limit) {
      return broken("it has " + std::to_string(pair_count_) + " metadata; " + std::to_string(metadata_limit) +
                    " are allowed");
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
    std::string bytes;
    Status taken = static_cast<ValueType>(type) == ValueType::string
                       ? reader_.take_text(bytes, "the metadata " + in_quotes(key))
                       : ValueReader(reader_, bytes).take(static_cast<ValueType>(type));
    if (!taken) return named("the metadata " + in_quotes(key), std::move(taken).error());
    MetadataValue value(type, std::move(bytes));
    if (key == alignment_key) {
      if (Status status = set_alignment(static_cast<ValueType>(type), value); !status) return status;
    }
    if (!contents.metadata.emplace(key, std::move(value)).second) {
      return broken("the metadata " + in_quotes(key) + " appears twice");
    }
    return {};
  }

  Status set_alignment(ValueType type, const MetadataValue& value) {
    const std::uint64_t number = type == ValueType::u32 ? std::stoull(value.text()) : 0;
    if (!std::has_single_bit(number) || number > alignment_limit) {
      return broken("general.alignment is not a power of two, as u32");
    }
    alignment_ = number;
    return {};
  }

  Status take_tensor(Names& names) {
    TensorInfo& tensor = contents.tensors.emplace_back();
    if (Status status = reader_.take_text(tensor.name, "the name of a tensor"); !status) return status;
    if (tensor.name.empty() || tensor.name.size() >= name_limit_bytes) {
      return broken("the name of a tensor has " + std::to_string(tensor.name.size()) + " bytes; 1 to 63 are allowed");
    }
    if (!names.add(contents.tensors, static_cast<std::uint32_t>(contents.tensors.size() - 1))) {
      return broken("tensor " + in_quotes(tensor.name) + " appears twice");
    }
    const std::string what = "tensor " + in_quotes(tensor.name);
    if (Status status = take_shape(tensor); !status) return named(what, std::move(status).error());
    std::uint32_t type = 0;
    if (Status status = reader_.take(type, what); !status) return status;
    if (Status status = reader_.take(tensor.offset, what); !status) return status;
    if (Status status = set_type(tensor, type); !status) return named(what, std::move(status).error());
    return {};
  }

  // The file has the fastest dimension first.
  Status take_shape(TensorInfo& tensor) {
    std::uint32_t dimensions = 0;
    if (Status status = reader_.take(dimensions, "its dimensions"); !status) return status;
    if (dimensions > gguf_dimension_limit) {
      return broken("it has " + std::to_string(dimensions) + " dimensions; 4 are allowed");
    }
    tensor.shape.resize(dimensions);
    for (std::uint32_t i = dimensions; i > 0; --i) {
      if (Status status = reader_.take(tensor.shape[i - 1], "its dimensions"); !status) return status;
    }
    return {};
  }

  static Error unknown_type(std::uint32_t id) {
    for (const RemovedType& type : removed_ggml_types) {
      if (type.id != id) continue;
      return {.code = Code::unsupported,
              .message = "its type " + std::string(type.name) + " was dropped by ggml",
              .hint = "convert the model with a recent llama.cpp"};
    }
    return {.code = Code::unsupported,
            .message = "its type " + std::to_string(id) + " is not known",
            .hint = "convert the model to a known ggml type"};
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
        return broken("its rows of " + std::to_string(row) + " elements are not whole blocks of " +
                      std::to_string(type->block_elements) + " of " + std::string(type->name));
      }
      if (__builtin_mul_overflow(row / type->block_elements, type->block_bytes, &row)) {
        return broken("its shape has more elements than can be counted");
      }
    }
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return bytes.error();
    tensor.size_bytes = tensor.stored_bytes = *bytes;
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
    const auto by_place = [](const TensorInfo& a, const TensorInfo& b) {
      return std::tie(a.offset, a.size_bytes, a.name) < std::tie(b.offset, b.size_bytes, b.name);
    };
    // Most writers write them in order.
    if (!std::ranges::is_sorted(contents.tensors, by_place)) std::ranges::sort(contents.tensors, by_place);
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
      return broken("its offset " + std::to_string(tensor.offset) + " is not a multiple of the alignment " +
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
};

}  // namespace

Result<Contents> parse_gguf(const ReadAt& read, std::uint64_t file_bytes) {
  Parser parser(read, file_bytes);
  if (Status parsed = parser.parse(); !parsed) return std::move(parsed).error();
  return std::move(parser.contents);
}

Result<Contents> parse_gguf(std::string_view file) {
  const auto read = [file](std::uint64_t offset, std::span<char> bytes) {
    file.copy(bytes.data(), bytes.size(), offset);
    return Status();
  };
  return parse_gguf(read, file.size());
}

}  // namespace penstock::models
