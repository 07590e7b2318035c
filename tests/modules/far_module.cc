// An engine as a module: stores that answer after a millisecond.
#include "engine/module.h"
#include "support/far_engine.h"

PENSTOCK_MODULE([]() -> penstock::engine::Engine* {
  return new penstock::test::FarEngine(std::chrono::milliseconds(1));
})
