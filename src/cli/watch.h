// Watch: what the lanes of a Context do, live on a terminal: how far a transfer is, and a bar for each lane that shows
// where its time went since the last look.
#pragma once

#include <cstdint>

#include "common.h"
#include "live.h"
#include "penstock/context.h"

namespace penstock::cli {

class Watch {
 public:
  // The Context must keep a trace.
  Watch(const Context& context, std::uint64_t total_bytes);
  void update(std::uint64_t bytes_done);

 private:
  const Context& context_;
  const std::uint64_t total_bytes_;
  Stopwatch stopwatch_;
  LiveText text_;
  double seen_seconds_;
};

}  // namespace penstock::cli
