#include "services/packed/kernels.h"

#include <cstdlib>
#include <string_view>

namespace penstock::packed {
namespace {

const Kernels* choose() {
  const char* const wanted = std::getenv("PENSTOCK_PACKED_KERNELS");
  const bool is_portable = wanted != nullptr && std::string_view(wanted) == portable_kernels.name;
  return fast_kernels != nullptr && has_fast_kernels() && !is_portable ? fast_kernels : &portable_kernels;
}

}  // namespace

const Kernels& best_kernels() {
  static const Kernels* const best = choose();
  return *best;
}

}  // namespace penstock::packed
