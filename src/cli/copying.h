// How `penstock write` moves bytes: from a Source through two windows of host memory that take turns, so that the size
// is not limited by memory, or from GPU memory that was filled before.
#pragma once

#include <cstdint>
#include <optional>

#include "output.h"
#include "penstock/checksum.h"
#include "penstock/context.h"
#include "source.h"

namespace penstock::cli {

inline constexpr std::uint64_t copy_window_bytes = 64 << 20;

struct CopyJob {
  Context& context;
  Source& source;
  const Store* destination = nullptr;
  Domain domain{};                 // of the memory that is written from
  std::uint64_t offset = 0;        // in the destination
  Checksum* checksum = nullptr;    // of what is written, if wanted
  std::optional<Region> memory{};  // of a GPU: holds all that the source gives
};

// Brings all of the source into `job.memory`, through a window of host memory.
Status fill_gpu(const CopyJob& job);

// Writes what the source gives, window by window; one is filled while the other is written.
Report copy_windows(const CopyJob& job, Progress& progress);
// Writes `job.memory` as one request.
Report write_memory(const CopyJob& job, Progress& progress);

}  // namespace penstock::cli
