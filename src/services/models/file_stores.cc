#include "services/models/file_stores.h"

#include <algorithm>
#include <cerrno>

#include "base/descriptors.h"
#include "services/models/open_store.h"

namespace penstock::models {

FileStores::FileStores(const Context& context, const Model& model, const WantedFiles& wanted) : context_(context) {
  // Buffered and direct; for GPU memory another engine may open a file again.
  const std::size_t descriptors_of_file = wanted.to_gpu ? 4 : 2;
  const auto count = static_cast<std::size_t>(std::ranges::count(wanted.files, true));
  for (const ModelFile& file : model.files()) {
    files_.push_back({.path = file.path, .identity = file.identity, .kept_open = file.kept_open});
  }
  open_.resize(files_.size());
  if (count <= 1) return;
  // Half of them are left to the rest of the process, and a half of what is used to others that load at the same time.
  const std::size_t files_at_once = free_descriptors() / 2 / descriptors_of_file;
  fit_ = count <= files_at_once;
  if (!fit_) for_one_request_ = std::max<std::size_t>(1, files_at_once / 4);
}

Result<Store> FileStores::open(std::uint32_t file) {
  if (open_[file]) return open_[file];
  Result<Store> store = open_store(context_, files_[file]);
  if (store && fit_) open_[file] = *store;
  return store;
}

Result<Store> FileStores::open_if_unchanged(std::uint32_t file) {
  if (!open_[file]) return open(file);
  const auto identity = open_[file].identity();
  if (!identity) return identity.error();
  if (*identity != files_[file].identity) return changed(files_[file]);
  return open_[file];
}

bool is_out_of_descriptors(const Error& error) {
  return error.system_error == EMFILE || error.system_error == ENFILE;
}

}  // namespace penstock::models
