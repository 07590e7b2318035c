// The page cache: how much of a store the kernel holds in memory, for those who measure or explain.
//
// Thread safety: any thread. The answer is a snapshot: others read and write too.
#pragma once

#include <cstdint>
#include <optional>

#include "penstock/store.h"

namespace penstock {

// How many bytes of a range are in the page cache. Nothing where the store has none, or where the kernel won't tell the
// truth: files of others, before Linux 6.5.
PENSTOCK_EXPORT std::optional<std::uint64_t> cached_bytes(const Store& store, std::uint64_t offset,
                                                          std::uint64_t length);

}  // namespace penstock
