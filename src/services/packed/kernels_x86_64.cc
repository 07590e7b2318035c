#include "services/packed/kernels_x86_64.h"

namespace penstock::packed {
namespace {

constexpr const Kernels* all[] = {&avx512_kernels, &avx2_kernels};

}  // namespace

std::span<const Kernels* const> fast_kernels() {
  return all;
}

}  // namespace penstock::packed
