// A Context whose only disk misbehaves: short transfers, errors, delays, completions in any order.
#pragma once

#include "api/context_builder.h"
#include "engines/fault/engine.h"
#include "engines/made/engine.h"
#include "engines/posix/engine.h"
#include "support/support.h"

namespace penstock::test {

// `fault`: in thousandths of operations.
inline Context faulty_context(std::uint64_t seed, std::uint32_t fault) {
  const fault::FaultPlan plan{.seed = seed,
                              .short_transfer = 50,
                              .io_error = fault,
                              .again = 20,
                              .interrupted = 20,
                              .delay = 10,
                              .max_delay = std::chrono::microseconds(100),
                              .reorder = true};
  engine::Table engines;
  engines.push_back(fault::make_engine(posix::make_engine(), plan));
  engines.push_back(made::make_engine());
  Options options{.lanes = 2, .deadlines = patient};
  options.storage_chunk_bytes = 16 << 10;
  return ContextBuilder::build(std::move(engines), options).value();
}

}  // namespace penstock::test
