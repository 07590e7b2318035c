// Models as they are named on the command line, and how they are spoken of.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "output.h"
#include "penstock/models.h"

namespace penstock::cli {

// A directory, *.safetensors, *.gguf or *.safetensors.index.json: what is loaded as a model unless bytes are asked for.
bool names_model(const std::string& name);

// One name is all that a model may be: a file, a directory or an index. Several are its files.
Result<Model> open_model(const Context& context, std::span<const std::string> names);

// Each format of its files once.
std::vector<std::string> formats(const Model& model);
// The type that its values really have: a quantized one by its own name.
std::string_view type_name(const TensorInfo& tensor);  // a constant
// "1 tensor", "2 tensors"
std::string count_of(std::size_t count, const std::string& thing);
// How long a packed model is, of its decoded bytes: "0.701".
double stored_ratio(std::uint64_t stored_bytes, std::uint64_t bytes);
std::string ratio_text(std::uint64_t stored_bytes, std::uint64_t bytes);

}  // namespace penstock::cli
