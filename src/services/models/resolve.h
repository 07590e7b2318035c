// What a path means: the files of a model. Names that an index gives are checked as text, before any is looked up;
// links are followed, as the snapshots of the Hugging Face cache need it.
//
// Thread safety: functions of the file system and of text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/result.h"

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
};
Result<Resolved> resolve(const std::string& path);

// At most `limit_bytes` of a regular file. Never waits for somebody to write to a pipe.
Result<std::string> read_whole(const std::string& path, std::uint64_t limit_bytes);

}  // namespace penstock::models
