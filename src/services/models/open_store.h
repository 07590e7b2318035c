// The file of a model, opened to be read or written.
#pragma once

#include "penstock/context.h"
#include "penstock/models.h"

namespace penstock::models {

Error changed(const ModelFile& file);
// Code::changed if it is not the file any more that it was when the model was opened.
Result<Store> open_store(const Context& context, const ModelFile& file);
// As OpenOptions have them.
struct ReplacedSize {
  std::uint64_t size_bytes = 0;
  std::uint64_t reserve_from = 0;
};
// A file to be replaced, by its path whatever that looks like, or by a name that stands for one (Context::redirect).
// With the descriptor of its folder the last part of the name counts, and is no link.
Result<Store> open_to_replace(const Context& context, const std::string& name, const ReplacedSize& size = {},
                              int folder = -1);

}  // namespace penstock::models
