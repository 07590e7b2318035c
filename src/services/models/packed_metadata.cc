#include "services/models/packed_metadata.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "services/models/json_reader.h"
#include "services/models/json_text.h"
#include "services/packed/format.h"

namespace penstock::models {
namespace {

using Kind = JsonReader::Kind;

// Chunks begin at multiples of 64 bytes that are counted in 32 bits.
constexpr std::uint64_t packed_bytes_most = std::uint64_t{UINT32_MAX} * packed::chunk_alignment;
// No codec makes less of a value.
constexpr std::uint64_t ratio_most = 4;

bool stands_as_packed(const TensorInfo& tensor) {
  return tensor.dtype == DType::u8 && tensor.shape.size() == 2 && tensor.shape[1] == packed::tensor_alignment &&
         tensor.size_bytes <= packed_bytes_most;
}

class PackedReader {
 public:
  PackedReader(std::string_view json, Contents& contents) : json_(json) {
    for (TensorInfo& tensor : contents.tensors) by_name_.emplace(tensor.name, &tensor);
  }

  Status read() {
    const Status read = json_.end(json_.object([&](std::string_view key) {
      if (key == "version") return take_version();
      if (key == "tensors") return json_.object([&](std::string_view name) { return take_tensor(name); });
      return json_.fail("it has an unknown key, " + in_quotes(key));
    }));
    if (unsupported_) return *unsupported_;
    if (!read) return read.error();
    if (!has_version_) return broken("it has no version");
    return {};
  }

 private:
  bool take_version() {
    std::optional<std::uint64_t> version;
    if (!json_.may_be(Kind::number)) return json_.fail("its version is not a number");
    if (!json_.number(version)) return false;
    has_version_ = true;
    if (version == packed::format_version) return true;
    return refuse("the tensors are packed in version " + (version ? std::to_string(*version) : "?") +
                  " of the format, and this library knows version 1");
  }

  bool take_tensor(std::string_view name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return json_.fail("the file has no tensor " + in_quotes(name));
    TensorInfo& tensor = *found->second;
    std::optional<DType> dtype;
    std::string codec;
    std::vector<std::uint64_t> shape;
    bool has_shape = false;
    const auto fail = [&](const std::string& problem) {
      return json_.fail("tensor " + in_quotes(name) + ": " + problem);
    };
    const bool taken = json_.object([&](std::string_view key) {
      if (key == "shape") {
        has_shape = true;
        return take_shape(shape) || fail("its shape is not a list of at most 64 whole numbers");
      }
      std::string_view text;
      if (!json_.may_be(Kind::string)) return fail("its " + std::string(key) + " is not a string");
      if (!json_.string(text)) return false;
      if (key == "dtype") {
        dtype = dtype_from_name(text);
        return dtype.has_value() || fail("its dtype " + in_quotes(text) + " is not known");
      }
      if (key == "codec") {
        codec = text;
        return true;
      }
      return fail("it has an unknown key, " + in_quotes(key));
    });
    if (!taken) return false;
    if (!dtype || !has_shape || codec.empty()) return fail("its dtype, shape or codec is missing");
    if (codec != packed::planes_codec_name) {
      return refuse("tensor " + in_quotes(name) + " is packed by the codec " + in_quotes(codec) +
                    ", and this library knows " + in_quotes(packed::planes_codec_name));
    }
    if (!packed::kind_from_name(dtype_name(*dtype))) {
      return fail("the codec planes does not pack " + std::string(dtype_name(*dtype)));
    }
    if (!stands_as_packed(tensor)) {
      return fail("it does not stand in the header as rows of 4096 bytes of U8, 256 GiB at most");
    }
    const Result<std::uint64_t> bytes = tensor_bytes(*dtype, shape);
    if (!bytes) return fail(bytes.error().message);
    if (*bytes == 0 || *bytes / ratio_most > tensor.size_bytes) {
      return fail("its shape needs " + std::to_string(*bytes) + " bytes, which can't be packed in " +
                  std::to_string(tensor.size_bytes));
    }
    tensor.dtype = *dtype;
    tensor.shape = std::move(shape);
    tensor.stored_bytes = tensor.size_bytes;
    tensor.size_bytes = *bytes;
    tensor.packing = packed::planes_codec_name;
    return true;
  }

  bool take_shape(std::vector<std::uint64_t>& shape) {
    if (!json_.may_be(Kind::array)) return false;
    return json_.array([&] {
      std::optional<std::uint64_t> number;
      if (!json_.may_be(Kind::number) || !json_.number(number) || !number) return false;
      shape.push_back(*number);
      return shape.size() <= dimension_limit;
    });
  }

  bool refuse(std::string problem) {
    if (!unsupported_) {
      unsupported_ =
          Error{Code::unsupported, 0, std::move(problem), "use a newer Penstock, or a model that is not packed"};
    }
    return json_.fail("it is of another version");
  }

  JsonReader json_;
  std::unordered_map<std::string_view, TensorInfo*> by_name_;
  std::optional<Error> unsupported_;
  bool has_version_ = false;
};

bool is_damaged_key(std::string_view key) {
  return key.size() == packed_key.size() &&
         std::inner_product(key.begin(), key.end(), packed_key.begin(), 0, std::plus<>(), std::not_equal_to<>()) == 1;
}

// Without its key, packed tensors would pass for bytes.
Status check_no_damaged_key(const Contents& contents) {
  const auto found =
      std::ranges::find_if(contents.metadata, [](const auto& entry) { return is_damaged_key(entry.first); });
  if (found == contents.metadata.end() || std::ranges::none_of(contents.tensors, stands_as_packed)) return {};
  return broken("metadata " + in_quotes(found->first) + " should be " + in_quotes(packed_key));
}

Error copied_metadata() {
  return {.code = Code::invalid_argument,
          .message = "it is that of a packed file, but no tensor here is packed: another program probably copied it",
          .hint = "save the tensors without this entry"};
}

}  // namespace

Status apply_packed(Contents& contents) {
  const auto found = contents.metadata.find(std::string(packed_key));
  if (found == contents.metadata.end()) return check_no_damaged_key(contents);
  const bool has_packed = std::ranges::any_of(contents.tensors, stands_as_packed);
  const std::string text = found->second.text();
  Status read = PackedReader(text, contents).read();
  if (read) return {};
  Error error = has_packed || read.error().code == Code::unsupported ? read.error() : copied_metadata();
  error.message = "metadata " + in_quotes(packed_key) + ": " + error.message;
  return error;
}

std::string packed_metadata(std::span<const PackedEntry> tensors) {
  std::string list;
  for (const PackedEntry& tensor : tensors) {
    list += (list.empty() ? "" : ",") + json_of(tensor.name) + R"(:{"codec":)" + json_of(packed::planes_codec_name) +
            R"(,"dtype":)" + json_of(dtype_name(tensor.dtype)) + R"(,"shape":)" + json_of(tensor.shape) + "}";
  }
  return R"({"tensors":{)" + list + R"(},"version":)" + std::to_string(packed::format_version) + "}";
}

}  // namespace penstock::models
