#include <string>
#include <utility>

#include "cuda/driver.h"
#include "cuda/quiet.h"
#include "penstock/cuda.h"

namespace penstock {

namespace {

Result<cuda::Device*> active_device(Domain domain) {
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  return (*driver)->device(domain.device());
}

// REQUIRES: there is a mark.
cuda::Device& device_of_mark(int gpu) {
  return *cuda::Driver::get().value()->device(gpu).value();
}

Error no_mark() {
  return {Code::invalid_argument, 0, "this CudaMark was moved from", "use the one that it was moved to"};
}

}  // namespace

Result<CudaMark> CudaMark::put(Domain gpu, CudaStream stream) {
  if (gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, "a mark on a stream of " + gpu.name(), "give the stream's GPU"};
  }
  const auto device = active_device(gpu);
  if (!device) return device.error();
  const cuda::Current current(**device);
  const auto event = (*device)->take_event();
  if (!event) return event.error();
  const cuda::CuResult result = (*device)->api().event_record(*event, static_cast<cuda::CuStream>(stream.handle));
  if (result == cuda::cu_success) return CudaMark(gpu.device(), *event);
  (*device)->give_back_event(*event);
  return (*device)->driver().error(result, "mark a stream of " + gpu.name(),
                                   "give a stream of that GPU that has not been destroyed");
}

CudaMark::CudaMark(CudaMark&& other) noexcept : gpu_(other.gpu_), event_(std::exchange(other.event_, nullptr)) {}

CudaMark& CudaMark::operator=(CudaMark&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(event_, other.event_);
  return *this;
}

CudaMark::~CudaMark() {
  if (event_ != nullptr) device_of_mark(gpu_).give_back_event(static_cast<cuda::CuEvent>(event_));
}

Result<bool> CudaMark::reached() const {
  if (event_ == nullptr) return no_mark();
  const cuda::Device& device = device_of_mark(gpu_);
  const cuda::CuResult state = device.api().event_query(static_cast<cuda::CuEvent>(event_));
  if (state == cuda::cu_success || state == cuda::cu_not_ready) return state == cuda::cu_success;
  return device.driver().error(state, "the work before a mark on a stream of " + device.info().domain.name());
}

Status CudaMark::hold_back(CudaStream stream) const {
  if (event_ == nullptr) return no_mark();
  cuda::Device& device = device_of_mark(gpu_);
  const cuda::Current current(device);
  const cuda::CuResult result =
      device.api().stream_wait_event(static_cast<cuda::CuStream>(stream.handle), static_cast<cuda::CuEvent>(event_), 0);
  if (result == cuda::cu_success) return {};
  return device.driver().error(result, "make a stream wait for a mark", "give a stream that has not been destroyed");
}

Result<std::uint64_t> gpu_address(Domain gpu, const void* pinned) {
  if (gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, "the address of memory for " + gpu.name(), "give a GPU"};
  }
  const auto device = active_device(gpu);
  if (!device) return device.error();
  const cuda::Current current(**device);
  cuda::CuDevicePtr address = 0;
  const cuda::CuResult result = (*device)->api().host_get_device_pointer(&address, const_cast<void*>(pinned), 0);
  if (result == cuda::cu_success) return address;
  return (*device)->driver().error(result, "find the address at which " + gpu.name() + " reaches memory of the host",
                                   "allocate it in Domain::pinned() after Context::prepare, or pin it with CUDA");
}

Status launch_kernel(Domain gpu, CudaStream stream, std::string_view kernel, std::uint64_t entries,
                     std::uint32_t count) {
  if (gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, "a kernel for " + gpu.name(), "give a GPU"};
  }
  const auto device = active_device(gpu);
  if (!device) return device.error();
  cuda::CuFunction const function = (*device)->kernels().find(kernel);
  if (function == nullptr) {
    return Error{Code::unsupported, 0, gpu.name() + " has no kernel " + std::string(kernel),
                 "penstock/cuda.h lists the kernels"};
  }
  if (count == 0) return {};
  const cuda::Current current(**device);
  void* parameters[] = {&entries, &count};
  const cuda::CuResult result =
      (*device)->api().launch_kernel(function, count, 1, 1, cuda::kernel_threads, 1, 1, 0,
                                     static_cast<cuda::CuStream>(stream.handle), parameters, nullptr);
  if (result == cuda::cu_success) return {};
  return (*device)->driver().error(result, "launch the kernel " + std::string(kernel) + " on " + gpu.name(),
                                   "give a stream of that GPU that has not been destroyed");
}

Result<HeldFrees> HeldFrees::begin() {
  if (cuda::Quiet::of_process().begin_wait()) return HeldFrees();
  return Error{Code::would_deadlock, 0, "hold frees back: memory is being freed, and that takes too long",
               "the GPU is already busy: hold frees before you start that work"};
}

HeldFrees::HeldFrees(HeldFrees&& other) noexcept : is_held_(std::exchange(other.is_held_, false)) {}

HeldFrees& HeldFrees::operator=(HeldFrees&& other) noexcept {
  std::swap(is_held_, other.is_held_);
  return *this;
}

HeldFrees::~HeldFrees() {
  if (is_held_) cuda::Quiet::of_process().end_wait();
}

}  // namespace penstock
