#include "services/packed/kernels.h"

#include <cstdlib>
#include <string_view>

namespace penstock::packed {

const Kernels& best_kernels() {
  static const Kernels& best = []() -> const Kernels& {
    const char* const wanted = std::getenv("PENSTOCK_PACKED_KERNELS");
    const bool is_portable = wanted != nullptr && std::string_view(wanted) == portable_kernels.name;
    return fast_kernels != nullptr && has_fast_kernels() && !is_portable ? *fast_kernels : portable_kernels;
  }();
  return best;
}

}  // namespace penstock::packed
