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

std::uint32_t value_bytes(PackedType type) {
  switch (type) {
    case PackedType::bf16:
    case PackedType::f16:
      return 2;
    case PackedType::f32:
      return 4;
    case PackedType::f8_e4m3:
    case PackedType::f8_e5m2:
      return 1;
  }
  return 0;
}

// Why the run can't be decoded, whatever its chunks are; null: it can.
const char* flaw_of(const UnpackRun& run) {
  const std::uint64_t value = value_bytes(run.type);
  if (value == 0) return "its type is unknown";
  if (run.count == 0 || run.count > UnpackRun::chunks_most) return "it has no chunks, or too many";
  if (run.last_values == 0 || run.last_values > UnpackRun::chunk_values) return "its last chunk has no possible length";
  if (run.starts[0] != 0) return "it does not begin with a chunk";
  for (std::uint32_t i = 0; i < run.count; ++i) {
    // The longest chunk has an exception for every value, and no chunk is without a header.
    constexpr std::uint32_t longest = UnpackRun::chunk_values * 6 / UnpackRun::chunk_unit_bytes;
    if (run.starts[i + 1] <= run.starts[i] || run.starts[i + 1] - run.starts[i] > longest) {
      return "the places of its chunks are out of order";
    }
  }
  const std::uint64_t decoded = ((run.count - 1) * std::uint64_t{UnpackRun::chunk_values} + run.last_values) * value;
  if (run.skip_bytes > decoded || run.memory_bytes > decoded - run.skip_bytes) return "more is wanted than it has";
  if ((run.skip_bytes | run.memory_bytes | run.memory) % value != 0) return "values are cut through";
  if (run.stored % UnpackRun::alignment_bytes != 0 || run.status % sizeof(std::uint32_t) != 0) {
    return "its addresses are not aligned";
  }
  return nullptr;
}

}  // namespace

Result<CudaMark> CudaMark::put(Domain gpu, CudaStream stream) {
  if (gpu.host_accessible()) {
    return Error{Code::invalid_argument, 0, "a mark on a stream of " + gpu.name(), "give the stream's GPU"};
  }
  const auto device = active_device(gpu);
  if (!device) return device.error();
  const cuda::Current current(**device);
  // In a graph, a mark would tell nothing of its replays.
  int capturing = cuda::cu_capture_status_none;
  const cuda::CuResult asked =
      (*device)->api().stream_is_capturing(static_cast<cuda::CuStream>(stream.handle), &capturing);
  if (asked == cuda::cu_stream_capture_implicit || capturing != cuda::cu_capture_status_none) {
    return Error{Code::unsupported, 0, "mark a stream of " + gpu.name() + ": it is being captured into a graph",
                 "mark it before or after the capture, or mark another stream"};
  }
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

Status launch_unpack(Domain gpu, CudaStream stream, const UnpackRun& run) {
  if (gpu.host_accessible()) return Error{Code::invalid_argument, 0, "a kernel for " + gpu.name(), "give a GPU"};
  if (const char* const flaw = flaw_of(run)) {
    return Error{Code::invalid_argument, 0, std::string("a run of packed chunks can't be decoded: ") + flaw,
                 "penstock/unpack.h says what it needs"};
  }
  const auto device = active_device(gpu);
  if (!device) return device.error();
  cuda::CuFunction const function = (*device)->kernels()[cuda::unpack_kernel(run.type)];
  if (function == nullptr) {
    return Error{Code::unsupported, 0, gpu.name() + " has no kernel for packed chunks", "ask can_unpack first"};
  }
  const cuda::Current current(**device);
  void* parameters[] = {const_cast<UnpackRun*>(&run)};
  const cuda::CuResult result =
      (*device)->api().launch_kernel(function, run.count, 1, 1, cuda::unpack_threads, 1, 1, 0,
                                     static_cast<cuda::CuStream>(stream.handle), parameters, nullptr);
  if (result == cuda::cu_success) return {};
  return (*device)->driver().error(result, "decode packed chunks on " + gpu.name(),
                                   "give a stream of that GPU that has not been destroyed");
}

bool can_unpack(Domain gpu) {
  if (gpu.host_accessible()) return false;
  const auto device = active_device(gpu);
  return device && (*device)->kernels()[cuda::Kernel::unpack_f8_e5m2] != nullptr;  // they come all at once
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
