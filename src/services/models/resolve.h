// What a name means: the files of a model. Names that an index gives are checked as text, before any is looked up;
// links are followed, as the snapshots of the Hugging Face cache need it.
//
// Thread safety: functions of the file system, of stores and of text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/context.h"

namespace penstock::models {

struct Index {
  // Which file holds a tensor. No tensor is there twice.
  struct Weight {
    std::string tensor;
    std::uint32_t file = 0;  // in `files`
  };
  std::vector<Weight> weights;
  std::vector<std::string> files;            // each once, in order
  std::optional<std::uint64_t> total_bytes;  // what its metadata say that all tensors have
};
inline constexpr std::string_view index_ending = ".safetensors.index.json";
// A pure function: the text of model.safetensors.index.json.
Result<Index> parse_index(std::string_view json);

struct Resolved {
  std::vector<std::string> files;
  std::string index_path;  // if there is one
  std::optional<Index> index;
  std::string folder = {};  // that is the model, or whose index names it: it must stay finished (pack_folder.h)
};
// A path, or any other name that the Context opens; without a Context, a path. Only directories of paths are listed,
// and of names that stand for a path (Context::redirect).
Result<Resolved> resolve(const Context* context, const std::string& name);

// The name of a file in the folder of another, by the scheme of that. Pure.
std::string beside(std::string_view uri, std::string_view file);

}  // namespace penstock::models
