// The kernels of the library that the fake knows, run by the CPU when their turn on a stream has come.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string_view>

#include "cuda/api.h"

namespace fake_cuda {

struct Device;

enum class Kernel {
  scatter,
  unpack_bf16,
  unpack_f16,
  unpack_f32,
  unpack_f8_e4m3,
  unpack_f8_e5m2,
  rows_find,
  rows_place
};

// By its name in a module.
std::optional<Kernel> kernel_from_name(std::string_view name);

// A launch with its parameters, which are copied now. `blocks`: a grid that is too small leaves entries or chunks out.
std::function<penstock::cuda::CuResult(std::unique_lock<std::mutex>&)> launch_of(Kernel kernel, Device& device,
                                                                                 unsigned blocks, void** parameters);

}  // namespace fake_cuda
