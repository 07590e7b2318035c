#include "services/models/safetensors.h"

#include <algorithm>
#include <compare>
#include <optional>
#include <utility>

#include "services/models/json_reader.h"
#include "services/models/packed_metadata.h"
#include "services/models/usual_entry.h"

namespace penstock::models {
namespace {

using Kind = JsonReader::Kind;

class Header {
 public:
  Header(std::string_view json, Contents& contents) : Header(json, contents, entries_in(json)) {}

  Status read() {
    return json_.end(
        json_.object([&](std::string_view key) { return key == metadata_key ? take_metadata() : take_tensor(key); }));
  }

 private:
  Header(std::string_view json, Contents& contents, std::size_t entries) : json_(json, entries), contents_(contents) {
    contents_.tensors.reserve(entries);
  }

  // About as many as there are; there may be braces in names.
  static std::size_t entries_in(std::string_view json) {
    constexpr std::size_t least_entry_bytes = 50;
    return std::min(static_cast<std::size_t>(std::ranges::count(json, '{')) - 1, json.size() / least_entry_bytes);
  }

  bool take_metadata() {
    if (!json_.may_be(Kind::object)) return json_.fail("__metadata__ is not a JSON object");
    return json_.object([&](std::string_view key) {
      if (!json_.may_be(Kind::string)) return json_.fail("the metadata " + in_quotes(key) + " is not a string");
      std::string_view text;
      if (!json_.string(text)) return false;
      if (contents_.metadata.size() == metadata_limit) {
        return json_.fail("it has more than " + std::to_string(metadata_limit) + " metadata");
      }
      contents_.metadata.emplace(std::string(key), std::string(text));
      return true;
    });
  }

  bool take_tensor(std::string_view name) {
    contents_.tensors.emplace_back().name = name;
    if (take_usual_entry()) return finish_tensor();
    has_dtype_ = has_shape_ = false;
    offset_count_ = 0;
    if (!json_.may_be(Kind::object)) return fail("its entry is not a JSON object");
    if (!json_.object([&](std::string_view field) { return take_field(field); })) return false;
    if (!has_dtype_) return fail("it has no dtype");
    if (!has_shape_) return fail("it has no shape");
    if (offset_count_ != 2) return fail("it has no data_offsets of two numbers");
    return finish_tensor();
  }

  bool take_usual_entry() {
    UsualEntry entry(json_.left());
    if (!entry.read()) return false;
    if (entry.dtype() != dtype_name(last_dtype_)) {
      const std::optional<DType> dtype = dtype_from_name(entry.dtype());
      if (!dtype) return false;
      last_dtype_ = *dtype;
    }
    tensor().dtype = last_dtype_;
    tensor().shape.assign(entry.shape().begin(), entry.shape().end());
    offsets_[0] = entry.begin();
    offsets_[1] = entry.end();
    return json_.leave(entry.left());
  }

  bool take_field(std::string_view field) {
    if (field == "dtype") return take_dtype();
    if (field == "shape") return take_shape();
    if (field == "data_offsets") return take_offsets();
    return fail("it has an unknown key, " + in_quotes(field));
  }

  bool take_dtype() {
    if (!json_.may_be(Kind::string)) return fail("its dtype is not a string");
    std::string_view text;
    if (!json_.string(text)) return false;
    const std::optional<DType> dtype = dtype_from_name(text);
    if (!dtype) return fail("its dtype " + in_quotes(text) + " is not known");
    tensor().dtype = *dtype;
    return has_dtype_ = true;
  }

  bool take_shape() {
    std::vector<std::uint64_t>& shape = tensor().shape;
    shape.reserve(2);  // most are matrices
    has_shape_ = true;
    return take_numbers("its shape is not a list of whole numbers", [&](std::uint64_t number) {
      if (shape.size() == dimension_limit) return fail("its shape has more than 64 dimensions");
      shape.push_back(number);
      return true;
    });
  }

  bool take_offsets() {
    constexpr std::string_view problem = "its data_offsets are not two whole numbers";
    return take_numbers(problem, [&](std::uint64_t number) {
      if (offset_count_ == 2) return fail(problem);
      offsets_[offset_count_++] = number;
      return true;
    });
  }

  template <typename Take>
  bool take_numbers(std::string_view problem, Take take) {
    if (!json_.may_be(Kind::array)) return fail(problem);
    return json_.array([&] {
      std::optional<std::uint64_t> number;
      if (!json_.may_be(Kind::number)) return fail(problem);
      if (!json_.number(number)) return false;
      return number ? take(*number) : fail(problem);
    });
  }

  // The bytes between its offsets are as many as its shape needs.
  bool finish_tensor() {
    const auto [begin, end] = std::pair(offsets_[0], offsets_[1]);
    if (begin > end) {
      return fail("its data_offsets end at " + std::to_string(end) + ", before they begin at " + std::to_string(begin));
    }
    const Result<std::uint64_t> bytes = tensor_bytes(tensor().dtype, tensor().shape);
    if (!bytes) return fail(bytes.error().message);
    if (*bytes != end - begin) {
      return fail("its shape needs " + std::to_string(*bytes) + " bytes, and its data_offsets have " +
                  std::to_string(end - begin));
    }
    tensor().offset = begin;
    tensor().size_bytes = tensor().stored_bytes = *bytes;
    return true;
  }

  TensorInfo& tensor() { return contents_.tensors.back(); }
  bool fail(std::string_view problem) {
    return json_.fail("tensor " + in_quotes(tensor().name) + ": " + std::string(problem));
  }

  JsonReader json_;
  Contents& contents_;
  DType last_dtype_ = DType::f32;  // most often that of the next as well
  // Of the tensor that is being read.
  bool has_dtype_ = false;
  bool has_shape_ = false;
  std::size_t offset_count_ = 0;
  std::uint64_t offsets_[2] = {};
};

// Those without bytes lie where another begins, and stay in the order of the header. Keys are sorted, and each tensor
// is moved once: it is several times as long.
void sort_by_place(std::vector<TensorInfo>& tensors) {
  struct Key {
    std::uint64_t offset, size_bytes;
    std::uint32_t index;
    auto operator<=>(const Key&) const = default;
  };
  const auto place_of = [](const TensorInfo& tensor) { return std::pair(tensor.offset, tensor.size_bytes); };
  if (std::ranges::is_sorted(tensors, {}, place_of)) return;  // as most writers write them
  std::vector<Key> keys;
  keys.reserve(tensors.size());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) keys.push_back({tensors[i].offset, tensors[i].size_bytes, i});
  std::ranges::sort(keys);
  for (std::uint32_t first = 0; first < keys.size(); ++first) {
    if (keys[first].index == first) continue;
    // A cycle of moves: each place gets what belongs there, and is free for the next one.
    TensorInfo kept = std::move(tensors[first]);
    std::uint32_t place = first;
    for (std::uint32_t from = 0; (from = std::exchange(keys[place].index, place)) != first; place = from) {
      tensors[place] = std::move(tensors[from]);
    }
    tensors[place] = std::move(kept);
  }
}

std::string numbers(std::uint64_t has, std::uint64_t wants) {
  return std::to_string(has) + ", not at " + std::to_string(wants);
}

// No holes, no overlaps, nothing left over.
Status check_layout(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes, Rest rest) {
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset > end) {
      return broken("tensor " + in_quotes(tensor.name) + ": there is a hole before it: it begins at " +
                    numbers(tensor.offset, end));
    }
    if (tensor.offset < end) {
      return broken("tensor " + in_quotes(tensor.name) + ": it overlaps the one before it: it begins at " +
                    numbers(tensor.offset, end));
    }
    end = tensor.offset + tensor.size_bytes;
    if (end > data_bytes) {
      return ends_early("tensor " + in_quotes(tensor.name) + ": it ends at byte " + std::to_string(end) +
                        " of the data, of which the file has " + std::to_string(data_bytes));
    }
  }
  if (end == data_bytes || rest == Rest::ignored) return {};
  return broken("the file has " + std::to_string(data_bytes - end) + " bytes behind its last tensor");
}

Error no_model(std::string message) {
  return {Code::invalid_argument, 0, std::move(message),
          "if it was one, it is damaged: download or save it again; if it is another kind of file, convert it first"};
}

}  // namespace

Result<std::uint64_t> safetensors_header_bytes(std::string_view first_bytes, std::uint64_t file_bytes) {
  if (first_bytes.size() < safetensors_length_bytes || file_bytes < safetensors_length_bytes) {
    return ends_early("it has " + std::to_string(file_bytes) + " bytes; a safetensors file has at least 8");
  }
  if (first_bytes.starts_with("\x93NUMPY")) {
    return Error{Code::invalid_argument, 0, "it is a .npy file, one array of NumPy's, and no model",
                 "open it as Rows (penstock.Rows in Python), or with numpy.load"};
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(first_bytes[i]);
  if (length > header_limit_bytes) {
    return no_model("its header would have " + std::to_string(length) +
                    " bytes; 100,000,000 are allowed: it is not a safetensors file");
  }
  if (length > file_bytes - safetensors_length_bytes) {
    return ends_early("its header of " + std::to_string(length) + " bytes reaches past the end of the file at " +
                      std::to_string(file_bytes));
  }
  return length;
}

Result<Contents> parse_safetensors(std::string_view json, std::uint64_t file_bytes, Rest rest) {
  if (json.empty() || json[0] != '{') return no_model("its header does not begin with {: it is not a safetensors file");
  Contents contents;
  const Status read = Header(json, contents).read();
  if (!read) {
    Error error = read.error();
    error.message = "header: " + error.message;
    return error;
  }
  sort_by_place(contents.tensors);
  contents.data_offset = safetensors_length_bytes + json.size();
  if (Status status = check_layout(contents.tensors, file_bytes - contents.data_offset, rest); !status) {
    return std::move(status).error();
  }
  for (TensorInfo& tensor : contents.tensors) tensor.offset += contents.data_offset;
  if (Status status = apply_packed(contents); !status) return std::move(status).error();
  return contents;
}

}  // namespace penstock::models
