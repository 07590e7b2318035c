// Side by side: the same work on many small files, on several threads. Each of them waits for the disk most of its
// time, when it deletes a file on a disk with discards above all; so they wait together.
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
