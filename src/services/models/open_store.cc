#include "services/models/open_store.h"

#include <filesystem>

namespace penstock::models {

Result<Store> open_store(Context& context, const ModelFile& file) {
  // An absolute path is a path whatever it looks like.
  std::error_code failed;
  Result<Store> store = context.open(std::filesystem::absolute(file.path, failed).string());
  if (!store || store->info().identity == file.identity) return store;
  return Error{Code::changed, 0, file.path + ": the file was modified or replaced since the model was opened",
               "open the model again"};
}

}  // namespace penstock::models
