// The engines that every conformance test runs over. A new engine is one line here, and writes no test of its own.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engines/fault/engine.h"
#include "engines/posix/engine.h"
#include "engines/uring/engine.h"

namespace penstock::test {

struct EngineCase {
  std::string name;
  std::function<std::unique_ptr<engine::Engine>()> make;
};

inline std::vector<EngineCase> engine_cases() {
  return {
      {"posix", [] { return posix::make_engine(); }},
      {"uring", [] { return uring::make_engine(); }},
      // Without faults a wrapped engine must behave as the engine itself.
      {"fault_over_posix", [] { return fault::make_engine(posix::make_engine(), {}); }},
      {"fault_over_uring", [] { return fault::make_engine(uring::make_engine(), {}); }},
  };
}

inline void PrintTo(const EngineCase& engine_case, std::ostream* out) {
  *out << engine_case.name;
}

}  // namespace penstock::test
