// The file of a model, opened to be read.
#pragma once

#include "penstock/context.h"
#include "penstock/models.h"

namespace penstock::models {

Error changed(const ModelFile& file);
// Code::changed if it is not the file any more that it was when the model was opened.
Result<Store> open_store(Context& context, const ModelFile& file);

}  // namespace penstock::models
