#include "services/models/safetensors.h"

#include <algorithm>
#include <tuple>

#include "services/models/json_walk.h"

namespace penstock::models {
namespace {

using Kind = JsonEvent::Kind;

// Collects the entries of a header while its JSON is walked over.
class Header {
 public:
  Header(Contents& contents, std::size_t json_bytes) : contents_(contents) {
    constexpr std::size_t usual_entry_bytes = 100;
    contents_.tensors.reserve(json_bytes / usual_entry_bytes);
  }

  JsonProblem visit(const JsonEvent& event) {
    if (event.path.empty()) return begins_or_ends(event) ? JsonProblem() : "the header is no object";
    if (event.path[0] == metadata_key) return visit_metadata(event);
    JsonProblem problem = event.path.size() == 1 ? visit_tensor(event) : visit_field(event);
    if (problem) problem = "tensor " + in_quotes(event.path[0]) + ": " + *problem;
    return problem;
  }

 private:
  static bool begins_or_ends(const JsonEvent& event) {
    return event.kind == Kind::object || event.kind == Kind::object_end;
  }

  JsonProblem visit_metadata(const JsonEvent& event) {
    if (event.path.size() == 1 && !event.in_array) {
      return begins_or_ends(event) ? JsonProblem() : "__metadata__ is no object";
    }
    if (event.kind != Kind::string || event.in_array) {
      return "the metadata " + in_quotes(event.path.back()) + " is not a string";
    }
    contents_.metadata.emplace(std::string(event.path[1]), std::string(event.text));
    return {};
  }

  JsonProblem visit_tensor(const JsonEvent& event) {
    if (event.kind == Kind::object && !event.in_array) {
      has_dtype_ = has_shape_ = false;
      offset_count_ = 0;
      contents_.tensors.emplace_back().name = event.path[0];
      return {};
    }
    if (event.kind != Kind::object_end) return "its entry is no object";
    if (!has_dtype_) return "it has no dtype";
    if (!has_shape_) return "it has no shape";
    if (offset_count_ != 2) return "it has no data_offsets of two numbers";
    return finish_tensor();
  }

  // The bytes between its offsets are as many as its shape needs.
  JsonProblem finish_tensor() {
    TensorInfo& tensor = contents_.tensors.back();
    const auto [begin, end] = std::pair(offsets_[0], offsets_[1]);
    if (begin > end) {
      return "its data_offsets end at " + std::to_string(end) + ", before they begin at " + std::to_string(begin);
    }
    const Result<std::uint64_t> bytes = tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return bytes.error().message;
    if (*bytes != end - begin) {
      return "its shape needs " + std::to_string(*bytes) + " bytes, and its data_offsets have " +
             std::to_string(end - begin);
    }
    tensor.offset = begin;
    tensor.size_bytes = *bytes;
    return {};
  }

  JsonProblem visit_field(const JsonEvent& event) {
    if (event.path.size() > 2 || event.kind == Kind::object) return in_quotes(event.path[1]) + " is an object";
    const std::string_view field = event.path[1];
    if (field == "dtype") return visit_dtype(event);
    if (field == "shape") return visit_shape(event);
    if (field == "data_offsets") return visit_offsets(event);
    return "it has a key that the format does not know, " + in_quotes(field);
  }

  JsonProblem visit_dtype(const JsonEvent& event) {
    if (event.kind != Kind::string || event.in_array) return "its dtype is not a string";
    const std::optional<DType> dtype = dtype_from_name(event.text);
    if (!dtype) return "its dtype " + in_quotes(event.text) + " is not known";
    contents_.tensors.back().dtype = *dtype;
    has_dtype_ = true;
    return {};
  }

  JsonProblem visit_shape(const JsonEvent& event) {
    if (event.kind == Kind::array && !event.in_array) {
      has_shape_ = true;
      contents_.tensors.back().shape.reserve(2);  // most are matrices
      return {};
    }
    if (event.kind != Kind::number || !event.in_array) return "its shape is not a list of whole numbers";
    std::vector<std::uint64_t>& shape = contents_.tensors.back().shape;
    if (shape.size() == dimension_limit) return "its shape has more than 64 dimensions";
    shape.push_back(event.number);
    return {};
  }

  JsonProblem visit_offsets(const JsonEvent& event) {
    if (event.kind == Kind::array && !event.in_array) return {};
    const bool fits = event.kind == Kind::number && event.in_array && offset_count_ < 2;
    if (!fits) return "its data_offsets are not two whole numbers";
    offsets_[offset_count_++] = event.number;
    return {};
  }

  Contents& contents_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  std::size_t offset_count_ = 0;
  std::uint64_t offsets_[2] = {};
};

std::string numbers(std::uint64_t has, std::uint64_t wants) {
  return std::to_string(has) + ", not at " + std::to_string(wants);
}

// No holes, no overlaps, nothing left over.
Status check_layout(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes) {
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
  if (end == data_bytes) return {};
  return broken("the file has " + std::to_string(data_bytes - end) + " bytes behind its last tensor");
}

}  // namespace

Result<std::uint64_t> safetensors_header_bytes(std::string_view first_bytes, std::uint64_t file_bytes) {
  if (first_bytes.size() < safetensors_length_bytes || file_bytes < safetensors_length_bytes) {
    return ends_early("it has " + std::to_string(file_bytes) + " bytes; a safetensors file has 8 at least");
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(first_bytes[i]);
  if (length > header_limit_bytes) {
    return broken("its header would have " + std::to_string(length) +
                  " bytes; 100,000,000 are allowed: it is no safetensors file");
  }
  if (length > file_bytes - safetensors_length_bytes) {
    return ends_early("its header of " + std::to_string(length) + " bytes reaches past the end of the file at " +
                      std::to_string(file_bytes));
  }
  return length;
}

Result<Contents> parse_safetensors(std::string_view json, std::uint64_t file_bytes) {
  if (json.empty() || json[0] != '{') return broken("its header does not begin with {: it is no safetensors file");
  Contents contents;
  Header header(contents, json.size());
  const Status walked = walk_json(json, [&](const JsonEvent& event) { return header.visit(event); });
  if (!walked) {
    Error error = walked.error();
    error.message = "header: " + error.message;
    return error;
  }
  const auto by_place = [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.size_bytes, a.name) < std::tie(b.offset, b.size_bytes, b.name);
  };
  // Most writers write them in order.
  if (!std::ranges::is_sorted(contents.tensors, by_place)) std::ranges::sort(contents.tensors, by_place);
  contents.data_offset = safetensors_length_bytes + json.size();
  if (Status status = check_layout(contents.tensors, file_bytes - contents.data_offset); !status) {
    return std::move(status).error();
  }
  for (TensorInfo& tensor : contents.tensors) tensor.offset += contents.data_offset;
  return contents;
}

}  // namespace penstock::models
