// PENSTOCK_TEST_GPU=real: the machine's own driver, or exit status 77 with the reason; otherwise the fake driver. With
// `without_kernels` it takes none, with `older` it has none of the optional functions either.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "fakes/cuda/control.h"
#include "penstock/gpu.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* variable = std::getenv("PENSTOCK_TEST_GPU");
  const std::string_view which = variable != nullptr ? variable : "";
  if (which == "without_kernels" || which == "older") ::setenv("FAKE_CUDA_KERNELS", "0", 1);
  if (which == "real") {
    constexpr int skipped = 77;
    const auto gpus = penstock::list_gpus();
    if (!gpus || gpus->empty()) {
      std::cout << "skipped: " << (gpus ? "no GPU" : gpus.error().message) << '\n';
      return skipped;
    }
  } else if (!FakeCuda::load(which == "older" ? "cuda_older" : "cuda")) {
    std::cerr << "the fake CUDA driver does not load\n";
    return 1;
  }
  return RUN_ALL_TESTS();
}
