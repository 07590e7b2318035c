// How many descriptors the process may still open.
//
// Thread safety: any thread. It looks at all that are open, so ask once for a piece of work.
#pragma once

#include <cstddef>

namespace penstock {

std::size_t free_descriptors();

}  // namespace penstock
