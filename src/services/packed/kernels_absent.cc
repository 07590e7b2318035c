#include "services/packed/kernels.h"

namespace penstock::packed {

constinit const Kernels* const fast_kernels = nullptr;

bool has_fast_kernels() {
  return false;
}

}  // namespace penstock::packed
