#include "penstock/cuda_module.h"

#include <string>
#include <utility>

#include "cuda/driver.h"

namespace penstock {
namespace {

// REQUIRES: a module was loaded there.
cuda::Device& device_of_module(int gpu) {
  return *cuda::Driver::get().value()->device(gpu).value();
}

}  // namespace

Result<CudaModule> CudaModule::load(Domain gpu, const char* image) {
  if (gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, "load kernels for " + gpu.name(), "give a GPU"};
  }
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const auto device = (*driver)->device(gpu.device());
  if (!device) return device.error();
  const cuda::Current current(**device);
  cuda::CuModule module = nullptr;
  const cuda::CuResult loaded = (*device)->api().module_load_data(&module, image);
  if (loaded != cuda::cu_success) {
    return (*driver)->error(loaded, "load kernels on " + gpu.name(),
                            "compile them for this GPU, or for one that is not newer");
  }
  return CudaModule(gpu.device(), module);
}

CudaModule::CudaModule(CudaModule&& other) noexcept
    : gpu_(other.gpu_), module_(std::exchange(other.module_, nullptr)) {}

CudaModule& CudaModule::operator=(CudaModule&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(module_, other.module_);
  return *this;
}

CudaModule::~CudaModule() {
  if (module_ == nullptr) return;
  cuda::Device& device = device_of_module(gpu_);
  const cuda::Current current(device);
  device.api().module_unload(static_cast<cuda::CuModule>(module_));
}

Status CudaModule::run(const char* kernel, Grid grid, const void* parameter) const {
  if (module_ == nullptr) {
    return Error{Code::invalid_argument, 0, "this CudaModule was moved from", "use the one that it was moved to"};
  }
  cuda::Device& device = device_of_module(gpu_);
  const cuda::Current current(device);
  cuda::CuFunction function = nullptr;
  cuda::CuResult result = device.api().module_get_function(&function, static_cast<cuda::CuModule>(module_), kernel);
  if (result == cuda::cu_success) {
    const cuda::CuStream stream = device.take_stream();
    void* parameters[] = {const_cast<void*>(parameter)};
    result =
        device.api().launch_kernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, 0, stream, parameters, nullptr);
    if (result == cuda::cu_success) result = device.api().stream_synchronize(stream);
    device.give_back_stream(stream);
  }
  if (result != cuda::cu_success) return device.driver().error(result, std::string("run the kernel ") + kernel);
  return {};
}

}  // namespace penstock
