#include "services/models/open_store.h"

namespace penstock::models {

Result<Store> open_store(Context& context, const ModelFile& file) {
  // It is absolute, so it is a path whatever it looks like.
  Result<Store> store = context.open(file.path);
  if (!store || store->info().identity == file.identity) return store;
  return changed(file);
}

Error changed(const ModelFile& file) {
  return {Code::changed, 0, file.path + ": the file was modified or replaced since the model was opened",
          "open the model again"};
}

}  // namespace penstock::models
