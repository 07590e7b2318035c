// How `penstock write` moves bytes: from a Source through windows of host memory that take turns, so that the size is
// not limited by memory, or from GPU memory that was filled before.
#pragma once

#include <cstdint>
#include <optional>

#include "deadline.h"
#include "output.h"
#include "penstock/checksum.h"
#include "penstock/context.h"
#include "source.h"

namespace penstock::cli {

// Two of them, and what else the process needs, must fit into the memory that there is for it.
std::uint64_t copy_window_bytes();

struct CopyJob {
  const Context& context;
  Source& source;
  const Store* destination = nullptr;
  Domain domain{};               // of the memory that is written from
  std::uint64_t offset = 0;      // in the destination
  std::uint64_t old_end = 0;     // of what was in the destination before, and does not read as zeros by itself
  Checksum* checksum = nullptr;  // of what is written, if wanted
  Deadline deadline{};
  std::optional<Region> memory{};  // of a GPU: holds all that the source gives
};

// Brings all of the source into `job.memory`, through a window of host memory.
Status fill_gpu(const CopyJob& job);

// Writes what the source gives, window by window; one is filled while the other is written. Holes are not written: what
// was in their place in the destination is deallocated or zeroed.
Report copy_windows(const CopyJob& job, Progress& progress);
// Writes `job.memory` as one request.
Report write_memory(const CopyJob& job, Progress& progress);

// Adds as many zeros.
Status add_zeros(Checksum& checksum, std::uint64_t size_bytes);

}  // namespace penstock::cli
