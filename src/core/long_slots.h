// LongSlots: how long ranges come from the page cache to a GPU where there are processors enough. Every copy takes the
// bus 3 µs more than its bytes, so copies should be long; and what is on its way should fit the processors' caches. So
// one lane has a few long slots of staging memory, and threads of its engine fill each of them together.
//
// To an H200, whose bus gives 55 GB/s, 12 or 14 threads and four slots of 16 MiB brought 0.99 of that from a disk's
// files and from tmpfs; 16 threads on as many processors, which left none to the lane, 0.86 to 0.95; 16 lanes with
// slots of 4 MiB each of their own 0.95 and 0.94.
//
// Short requests of synchronous callers have shorter ones, which the caller's thread fills with a few others.
#pragma once

#include <algorithm>
#include <cstdint>

#include "penstock/options.h"

namespace penstock::core {

struct LongSlots {
  static constexpr std::uint32_t threads_most = 12;
  static constexpr std::uint64_t count = 4;
  static constexpr std::uint64_t longest_bytes = 16 << 20;

  std::uint32_t threads = 0;  // that fill a slot together; 0: there are no long slots
  std::uint64_t slot_bytes = 0;

  // With fewer lanes, these are busy all the time as it is.
  static LongSlots of(const Options& options) {
    if (options.lanes <= threads_most) return {};
    return {threads_most,
            std::max(options.staging_slot_bytes, std::min(4 * options.staging_slot_bytes, longest_bytes))};
  }
  std::uint64_t staging_bytes() const { return count * slot_bytes; }
  // Shorter requests are over before it pays that one lane does the work of all.
  std::uint64_t worth_bytes() const { return 4 * staging_bytes(); }
};

}  // namespace penstock::core
