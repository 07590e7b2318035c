// FileStores: the files of a load as stores. Where the process has descriptors enough, all are opened at once and stay
// open; otherwise each is opened when it is needed, and some are open at a time.
//
// Thread safety: one thread at a time. Lifetime: the Context must outlive it; the Model need not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/context.h"
#include "penstock/models.h"

namespace penstock::models {

// What a load needs of the files of its model.
struct WantedFiles {
  std::vector<bool> files;  // by index
  bool to_gpu = false;
};

class FileStores {
 public:
  FileStores(const Context& context, const Model& model, const WantedFiles& wanted);

  // False: there are more files than may be open at a time.
  bool fit() const { return fit_; }
  // How many may be open for one of two requests under way.
  std::size_t for_one_request() const { return for_one_request_; }
  // Code::changed if it is not the file any more that it was when the model was opened.
  Result<Store> open(std::uint32_t file);
  // The same for who comes again and again: a file that is open already is looked at once more.
  Result<Store> open_if_unchanged(std::uint32_t file);

 private:
  const Context context_;
  std::vector<ModelFile> files_;  // without their metadata
  std::vector<Store> open_;       // by file, where they fit
  bool fit_ = true;
  std::size_t for_one_request_ = SIZE_MAX;
};

// Whether it is for want of descriptors: later there may be some.
bool is_out_of_descriptors(const Error& error);

}  // namespace penstock::models
