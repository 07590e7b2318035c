// Ranges that NVIDIA's profilers show (NVTX). Where the build found no NVTX header they are nothing, and without a
// profiler they cost next to nothing.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::cuda {

// Ranges may begin on one thread and end on another. 0: none.
std::uint64_t begin_range(const std::string& text);
void end_range(std::uint64_t range);

}  // namespace penstock::cuda
