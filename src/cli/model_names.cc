#include "model_names.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>

namespace penstock::cli {

bool names_model(const std::string& name) {
  constexpr std::array<std::string_view, 3> endings = {".safetensors", ".gguf", ".safetensors.index.json"};
  std::error_code failed;  // what is not there is no directory
  if (std::ranges::any_of(endings, [&](std::string_view ending) { return name.ends_with(ending); })) return true;
  std::string path = local_path(name);
  return name_by_path(path).ok() && std::filesystem::is_directory(path, failed);
}

Result<Model> open_model(const Context& context, std::span<const std::string> names) {
  std::vector<std::string> known;
  for (const std::string& name : names) known.push_back(local_path(name));
  return known.size() == 1 ? Model::open(context, known.front()) : Model::open(context, known);
}

std::vector<std::string> formats(const Model& model) {
  std::vector<std::string> names;
  for (const ModelFile& file : model.files()) {
    const std::string name(model_format_name(file.format));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string_view type_name(const TensorInfo& tensor) {
  return tensor.quantization.empty() ? dtype_name(tensor.dtype) : tensor.quantization;
}

std::string count_of(std::size_t count, const std::string& thing) {
  return std::to_string(count) + " " + thing + (count == 1 ? "" : "s");
}

double stored_ratio(std::uint64_t stored_bytes, std::uint64_t bytes) {
  return bytes == 0 ? 1.0 : static_cast<double>(stored_bytes) / static_cast<double>(bytes);
}

std::string ratio_text(std::uint64_t stored_bytes, std::uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", stored_ratio(stored_bytes, bytes));
  return text;
}

}  // namespace penstock::cli
