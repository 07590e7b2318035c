#include "services/models/open_store.h"

#include <filesystem>

#include "services/models/file_reader.h"

namespace penstock::models {

Result<Store> open_store(const Context& context, const ModelFile& file) {
  const int descriptor = file.kept_open ? file.kept_open->descriptor() : -1;
  // A path is absolute, so it is one whatever it looks like.
  Result<Store> store = context.open(file.path, {.descriptor = descriptor});
  if (!store || store->info().identity == file.identity) return store;
  return changed(file);
}

Error changed(const ModelFile& file) {
  return {Code::changed, 0, file.path + ": the file was modified or replaced since the model was opened",
          file.kept_open || !file.path.starts_with('/')
              ? "open the model again"
              : "open the model again; with more descriptors (ulimit -n) files that are replaced stay open"};
}

Result<Store> open_to_replace(const Context& context, const std::string& name, const ReplacedSize& size, int folder) {
  const OpenOptions options{.access = Access::replace,
                            .size_bytes = size.size_bytes,
                            .reserve_from = size.reserve_from,
                            .descriptor = folder};
  if (folder < 0) {
    // What a redirected name stands for need not be there yet.
    const Result<std::string> path = context.path_of(name);
    if (!path || *path != name) return context.open(name, options);
  }
  // An absolute path is a path whatever it looks like.
  std::error_code failed;
  return context.open(std::filesystem::absolute(name, failed).string(), options);
}

}  // namespace penstock::models
