#include "services/packed/kernels.h"

#include <cstdlib>
#include <string_view>

namespace penstock::packed {
namespace {

const Kernels* choose() {
  const std::vector<const Kernels*> here = kernels_here();
  if (const char* const wanted = ::secure_getenv("PENSTOCK_PACKED_KERNELS"); wanted != nullptr) {
    for (const Kernels* kernels : here) {
      if (std::string_view(wanted) == kernels->name) return kernels;
    }
  }
  return here.front();
}

}  // namespace

std::vector<const Kernels*> kernels_here() {
  std::vector<const Kernels*> here;
  for (const Kernels* kernels : fast_kernels()) {
    if (kernels->run_here()) here.push_back(kernels);
  }
  here.push_back(&portable_kernels);
  return here;
}

const Kernels& best_kernels() {
  static const Kernels* const best = choose();
  return *best;
}

}  // namespace penstock::packed
