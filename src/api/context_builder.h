// ContextBuilder: a Context over any table of engines. What Context::create does with the default table; tests bring
// their own.
#pragma once

#include "engine/engine.h"
#include "penstock/context.h"

namespace penstock {

class ContextBuilder {
 public:
  static Result<Context> build(engine::Table table, const Options& options);
};

}  // namespace penstock
