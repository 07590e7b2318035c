// Packing: models stored without loss in fewer bytes (docs/packed.md), made from plain ones and back.
//
//   auto report = penstock::pack_model(context, "models/llama/", "models/llama-packed/").value();
//   report.stored_bytes;  // of report.bytes
//
// A packed model is opened and loaded like any other: Model::open and load unpack it on the way.
//
// Thread safety: any thread. Lifetime: nothing is kept. Each file appears under its name when it is complete, after
// every tensor was decoded and compared; until then the old file is there, or none. Until all files are there the
// folder is marked as unfinished: Model::open refuses it and its index, and a second run into it fails with
// Code::in_use.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/context.h"
#include "penstock/models.h"

namespace penstock {

struct PackOptions {
  std::uint32_t threads = 0;  // that encode; 0: one for each CPU
  bool durable = true;
  // Called at most twenty times a second with decoded bytes; false cancels. Files that were finished stay. It must not
  // throw.
  std::function<bool(std::uint64_t done, std::uint64_t all)> progress = {};
};

struct PackReport {
  struct File {
    std::string path;
    std::uint32_t tensors = 0;
    std::uint32_t packed_tensors = 0;
    std::uint64_t bytes = 0;         // of all its tensors, decoded
    std::uint64_t stored_bytes = 0;  // that they take in it
  };
  std::vector<File> files;
  std::vector<std::string> copied;  // files beside the model that were copied: its configuration, tokenizer and so on
  double seconds = 0;

  PENSTOCK_EXPORT std::uint64_t bytes() const;
  PENSTOCK_EXPORT std::uint64_t stored_bytes() const;
};
// Writes the files of a model into a folder, which is made if it is not there: packed where a tensor gets at least 3 %
// smaller, plain otherwise. Its index and the small files beside it come too, so that the folder is a model. Only
// safetensors. Packing a packed model writes it again. No file of the model itself is replaced, under whatever name,
// and nothing is written through a symbolic link in the folder.
PENSTOCK_EXPORT Result<PackReport> pack_model(const Context& context, const std::string& model,
                                              const std::string& folder, const PackOptions& options = {});
// The same with all tensors plain.
PENSTOCK_EXPORT Result<PackReport> unpack_model(const Context& context, const std::string& model,
                                                const std::string& folder, const PackOptions& options = {});

// What packing would gain, from samples of each tensor.
struct PackEstimate {
  std::uint64_t bytes = 0;         // of all tensors
  std::uint64_t stored_bytes = 0;  // once they are packed
  std::uint32_t tensors = 0;
  std::uint32_t packed_tensors = 0;    // that would get smaller
  double read_bytes_per_second = 0;    // of the model as it is, to host memory, measured on a part of it
  double unpack_bytes_per_second = 0;  // of all lanes together: decoded bytes
  double load_seconds = 0;             // as it is
  double packed_load_seconds = 0;      // to host memory
};
PENSTOCK_EXPORT Result<PackEstimate> estimate_packing(const Context& context, const Model& model);

}  // namespace penstock
