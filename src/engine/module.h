// Module: an engine in a shared object of its own, for what needs libraries that not every machine has. The contract
// between the library and its engines has no versions: a module is of the same build, and bears its mark.
#pragma once

#include "engine/engine.h"

namespace penstock::engine {

struct Module {
  const char* build;
  Engine* (*make)();  // the caller owns it
};

inline constexpr const char* module_symbol = "penstock_module";

}  // namespace penstock::engine

// In one file of a module: the function that makes its engine.
#define PENSTOCK_MODULE(make_engine)                                                      \
  extern "C" {                                                                            \
  [[gnu::visibility("default")]] extern const ::penstock::engine::Module penstock_module; \
  const ::penstock::engine::Module penstock_module{PENSTOCK_BUILD_MARK, make_engine};     \
  }
