#include "cuda/ranges.h"

#if PENSTOCK_HAS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace penstock::cuda {

#if PENSTOCK_HAS_NVTX

std::uint64_t begin_range(const std::string& text) {
  return nvtxRangeStartA(text.c_str());
}
void end_range(std::uint64_t range) {
  if (range != 0) nvtxRangeEnd(range);
}

#else

std::uint64_t begin_range(const std::string& /*text*/) {
  return 0;
}
void end_range(std::uint64_t /*range*/) {}

#endif

}  // namespace penstock::cuda
