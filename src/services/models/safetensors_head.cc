#include "services/models/safetensors_head.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "services/models/contents.h"
#include "services/models/json_text.h"
#include "services/models/packed_metadata.h"
#include "services/models/safetensors.h"

namespace penstock {

using models::in_quotes;
using models::json_of;

namespace {

// Of the first tensor.
constexpr std::uint64_t alignment_limit_bytes = 1 << 20;

Error wrong_tensor(const TensorToSave& tensor, const std::string& what, const std::string& hint) {
  return {.code = Code::invalid_argument,
          .message = "tensor " + in_quotes(tensor.name) + ": " + what,
          .hint = hint + "; nothing was written"};
}

Status check_tensors(std::span<const TensorToSave> tensors) {
  std::set<std::string_view> names;
  for (const TensorToSave& tensor : tensors) {
    if (tensor.name == models::metadata_key) {
      return wrong_tensor(tensor, "the format reserves this name", "choose another name");
    }
    if (!names.insert(tensor.name).second) {
      return wrong_tensor(tensor, "the name appears twice", "give each tensor a name of its own");
    }
    if (tensor.shape.size() > models::dimension_limit) {
      return wrong_tensor(tensor, "its shape has more than 64 dimensions", "join some of them");
    }
    const Result<std::uint64_t> bytes = models::tensor_bytes(tensor.dtype, tensor.shape);
    if (!bytes) return wrong_tensor(tensor, bytes.error().message, "correct its shape");
    if (*bytes != tensor.memory.size_bytes) {
      return wrong_tensor(tensor,
                          "its shape needs " + std::to_string(*bytes) + " bytes, and its memory has " +
                              std::to_string(tensor.memory.size_bytes),
                          "correct its shape, its type or its memory");
    }
  }
  return {};
}

// Entry by entry: an object that keeps its order would look through all of them for each.
std::string header_json(std::span<const TensorToSave> tensors, std::span<const std::uint32_t> order,
                        const SaveOptions& options) {
  std::string text;
  for (const auto& [key, value] : options.metadata)
    text += (text.empty() ? "" : ",") + json_of(key) + ":" + json_of(value);
  if (!options.metadata.empty() || options.empty_metadata) text = json_of(models::metadata_key) + ":{" + text + "}";
  std::uint64_t offset = 0;
  for (const std::uint32_t index : order) {
    const TensorToSave& tensor = tensors[index];
    const std::uint64_t end = offset + tensor.memory.size_bytes;
    if (!text.empty()) text += ",";
    text += json_of(tensor.name) + R"(:{"dtype":")" + std::string(dtype_name(tensor.dtype)) + R"(","shape":)" +
            json_of(tensor.shape) + R"(,"data_offsets":[)" + std::to_string(offset) + "," + std::to_string(end) + "]}";
    offset = end;
  }
  return "{" + text + "}";
}

}  // namespace

namespace models {

std::vector<std::uint32_t> usual_order(std::span<const TensorToSave> tensors) {
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::sort(order, [&](std::uint32_t first, std::uint32_t second) {
    const TensorToSave &a = tensors[first], &b = tensors[second];
    return std::tuple(b.dtype, std::string_view(a.name)) < std::tuple(a.dtype, std::string_view(b.name));
  });
  return order;
}

Result<std::string> head_in_order(std::span<const TensorToSave> tensors, std::span<const std::uint32_t> order,
                                  const SaveOptions& options, std::uint64_t least_bytes) {
  if (Status status = check_tensors(tensors); !status) return std::move(status).error();
  const std::uint64_t alignment = options.alignment;
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > alignment_limit_bytes) {
    return Error{Code::invalid_argument, 0, "alignment: " + std::to_string(alignment),
                 "give a power of two from 8 to 1048576"};
  }
  if (options.metadata.size() > metadata_limit) {
    return Error{
        Code::invalid_argument, 0,
        std::to_string(options.metadata.size()) + " metadata; " + std::to_string(metadata_limit) + " are allowed",
        "join them into fewer entries"};
  }
  std::string json;
  try {
    json = header_json(tensors, order, options);
  } catch (const nlohmann::json::type_error&) {
    return Error{Code::invalid_argument, 0, "a name or metadata text is not UTF-8",
                 "encode names and metadata as UTF-8; nothing was written"};
  }
  const std::uint64_t used = std::max<std::uint64_t>(safetensors_length_bytes + json.size(), least_bytes);
  json.resize((used + alignment - 1) / alignment * alignment - safetensors_length_bytes, ' ');
  if (json.size() > header_limit_bytes) {
    return Error{Code::invalid_argument, 0, "the header would have more than 100,000,000 bytes",
                 "save fewer tensors in one file"};
  }
  std::string head;
  for (std::size_t i = 0; i < safetensors_length_bytes; ++i) head += static_cast<char>(json.size() >> (8 * i));
  return head + json;
}

}  // namespace models

Result<SafetensorsHead> safetensors_head(std::span<const TensorToSave> tensors, const SaveOptions& options) {
  std::vector<std::uint32_t> order = models::usual_order(tensors);
  // Metadata that was taken over from a packed file would call these tensors packed.
  SaveOptions plain = options;
  plain.metadata.erase(std::string(models::packed_key));
  Result<std::string> bytes = models::head_in_order(tensors, order, plain);
  if (!bytes) return std::move(bytes).error();
  return SafetensorsHead{.bytes = std::move(*bytes), .order = std::move(order)};
}

}  // namespace penstock
