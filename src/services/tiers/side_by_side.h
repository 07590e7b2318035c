// Side by side: the same work on many small files, on several threads. Where each of them waits for a disk or a server,
// they wait together. Work that does not wait, as the first pieces show, gets no more threads than there are
// processors.
//
// Thread safety: any thread. The threads end before the call does.
#pragma once

#include <cstddef>
#include <functional>

namespace penstock::tiers {

// Calls `work` with every number below `count`, on the caller's thread too, and alone there where no thread can be had.
// An exception of one call is thrown again when all have ended.
void side_by_side(std::size_t count, const std::function<void(std::size_t)>& work);

}  // namespace penstock::tiers
