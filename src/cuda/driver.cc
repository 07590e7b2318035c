#include "cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/fork_safe_mutex.h"
#include "base/log.h"
#include "cuda/quiet.h"

namespace penstock::cuda {

namespace {

constexpr int oldest_version = 11000;
// How long the first use of a GPU waits for its kernels. It goes on without them if the GPU is busy with others' work.
constexpr std::chrono::seconds kernels_time{2};

Error no_driver(std::string reason, std::string hint) {
  return {Code::no_device, 0, "no CUDA driver: " + std::move(reason), std::move(hint)};
}

template <typename Function>
bool look_up(void* library, const char* symbol, Relaxed<Function>& function) {
  function = Relaxed<Function>(reinterpret_cast<Function*>(::dlsym(library, symbol)));
  return function != nullptr;
}

std::string pci_address(int domain, int bus, int device) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", static_cast<unsigned>(domain), static_cast<unsigned>(bus),
                static_cast<unsigned>(device));
  return text.data();
}

}  // namespace

Code code_from_result(CuResult result) {
  switch (result) {
    case cu_success:
      return Code::ok;
    case cu_out_of_memory:
      return Code::out_of_memory;
    case cu_no_device:
    case cu_invalid_device:
    case cu_not_initialized:
    case cu_system_driver_mismatch:
      return Code::no_device;
    case cu_not_supported:
      return Code::unsupported;
    case cu_deinitialized:
    case cu_ecc_uncorrectable:
      return Code::device_lost;
    default:
      // Errors of running work leave the context unusable: illegal addresses, traps, failed launches, dead links.
      const bool sticky = (result >= cu_illegal_address && result <= 703) || (result >= 710 && result <= 711) ||
                          (result >= 714 && result <= cu_launch_failed);
      return sticky ? Code::device_lost : Code::device_error;
  }
}

namespace {

const char* usual_hint(Code code) {
  switch (code) {
    case Code::out_of_memory:
      return "free memory on the GPU, or load less";
    case Code::no_device:
      return "look at CUDA_VISIBLE_DEVICES and nvidia-smi";
    case Code::unsupported:
      return "a newer driver or GPU may be able to; nvidia-smi says what these are";
    default:
      return "was the memory freed while it was in use? If not, look at nvidia-smi and the kernel's log for the GPU";
  }
}

}  // namespace

Error Driver::error(CuResult result, std::string what, std::string hint) const {
  const char* name = nullptr;
  const char* text = nullptr;
  api_.get_error_name(result, &name);
  api_.get_error_string(result, &text);
  const Code code = code_from_result(result);
  if (code == Code::device_lost) {
    hint = device_lost_hint;
  } else if (hint.empty()) {
    hint = usual_hint(code);
  }
  return {code, result,
          std::move(what) + ": " + (text != nullptr ? text : "unknown CUDA error") + " (" +
              (name != nullptr ? name : std::to_string(result)) + ")",
          std::move(hint)};
}

Device::Device(Driver& driver, CuDevice handle, Gpu info) : driver_(driver), handle_(handle), info_(std::move(info)) {}

const RelaxedApi& Device::api() const {
  return driver_.api();
}

class Device::LoadsKernels : public Deferred {
 public:
  explicit LoadsKernels(Device& device) : device_(device) {}

 private:
  bool run() override {
    const Current current(device_);
    device_.kernels_.load(device_.api());
    return false;
  }

  Device& device_;
};

Status Device::activate() {
  if (active_.load(std::memory_order_acquire)) return {};
  const std::scoped_lock lock(mutex_);
  if (active_.load(std::memory_order_relaxed)) return {};
  if (Status status = retain_context(); !status) return status;
  {
    const Current current(*this);
    const CuResult result = streams_.fill(api());
    if (result != cu_success) {
      api().primary_context_release(handle_);
      return driver_.error(result, "make streams on " + info_.domain.name());
    }
  }
  Quiet& quiet = Quiet::of_process();
  quiet.defer(std::make_shared<LoadsKernels>(*this));
  quiet.catch_up(kernels_time);
  active_.store(true, std::memory_order_release);
  return {};
}

// One that the program has made is only counted. Making one may wait for other devices, as far as anybody knows.
Status Device::retain_context() {
  const std::string what = "make a context on " + info_.domain.name();
  unsigned flags = 0;
  int is_there = 0;
  api().primary_context_get_state(handle_, &flags, &is_there);
  CuResult result = cu_success;
  const auto retain = [&] { result = api().primary_context_retain(&context_, handle_); };
  if (is_there != 0) {
    retain();
  } else if (!Quiet::of_process().run(retain)) {
    return streams_wait_error(what);
  }
  return result == cu_success ? Status() : driver_.error(result, what);
}

namespace {

std::size_t count_rows(const StridedRows& rows) {
  return (rows.memory.size_bytes - rows.row_bytes) / rows.pitch_bytes + 1;
}

CuMemcpy2d describe(const RowsCopy& copy) {
  const auto type_of = [](const StridedRows& rows) {
    return rows.memory.domain.host_accessible() ? cu_memory_type_host : cu_memory_type_device;
  };
  CuMemcpy2d rows;
  rows.source_type = type_of(copy.from);
  rows.source_host = copy.from.memory.data;
  rows.source_device = device_address(copy.from.memory.data);
  rows.source_pitch = copy.from.pitch_bytes;
  rows.destination_type = type_of(copy.to);
  rows.destination_host = copy.to.memory.data;
  rows.destination_device = device_address(copy.to.memory.data);
  rows.destination_pitch = copy.to.pitch_bytes;
  rows.width_bytes = copy.to.row_bytes;
  rows.rows = count_rows(copy.to);
  return rows;
}

}  // namespace

Status Device::copy_and_wait(Region to, Region from) {
  const CuDevicePtr target = device_address(to.data);
  const CuDevicePtr source = device_address(from.data);
  const CuResult result = on_our_stream([&](CuStream stream) {
    if (to.domain.host_accessible()) return api().copy_from_device(to.data, source, to.size_bytes, stream);
    if (from.domain.host_accessible()) return api().copy_to_device(target, from.data, to.size_bytes, stream);
    return api().copy_between_devices(target, source, to.size_bytes, stream);
  });
  if (result == cu_success) return {};
  return driver_.error(result, "copy " + std::to_string(to.size_bytes) + " bytes from " + from.domain.name() + " to " +
                                   to.domain.name());
}

Status Device::copy_rows_and_wait(std::span<const RowsCopy> copies) {
  const CuResult result = on_our_stream([&](CuStream stream) {
    for (const RowsCopy& copy : copies) {
      const CuMemcpy2d rows = describe(copy);
      if (const CuResult issued = api().copy_2d(&rows, stream); issued != cu_success) return issued;
    }
    return cu_success;
  });
  if (result == cu_success) return {};
  return driver_.error(result, "copy rows to or from " + info_.domain.name());
}

CuResult Device::on_our_stream(const std::function<CuResult(CuStream)>& work) {
  const Current current(*this);
  CuStream stream = streams_.take(api());
  const CuResult result = work(stream);
  const CuResult finished = api().stream_synchronize(stream);
  streams_.give_back(stream);
  return result == cu_success ? finished : result;
}

Result<CuEvent> Device::take_event() {
  {
    const std::scoped_lock lock(mutex_);
    if (!free_events_.empty()) {
      CuEvent event = free_events_.back();
      free_events_.pop_back();
      return event;
    }
  }
  {
    const std::scoped_lock lock(mutex_);
    free_events_.reserve(events_made_ + 1);  // to give one back takes no memory
    ++events_made_;
  }
  CuEvent event = nullptr;
  if (const CuResult result = api().event_create(&event, cu_event_disable_timing); result != cu_success) {
    return driver_.error(result, "make an event on " + info_.domain.name());
  }
  return event;
}

void Device::give_back_event(CuEvent event) {
  const std::scoped_lock lock(mutex_);
  free_events_.push_back(event);
}

CuStream Device::take_stream() {
  const Current current(*this);
  return streams_.take(api());
}

Current::Current(const Device& device)
    : device_(device), pushed_(device.api().context_push(device.context()) == cu_success) {}

Current::~Current() {
  CuContext popped = nullptr;
  if (pushed_) device_.api().context_pop(&popped);
}

namespace {

ForkSafeMutex process_mutex;
Driver* process_driver = nullptr;  // never freed: see above
// That there is no such library. It is looked for once, which takes the loader a while: programs that run without a
// driver ask for it often.
std::optional<Error> process_has_none;

}  // namespace

Device* Driver::device_in_use() {
  const std::scoped_lock lock(process_mutex);
  if (process_driver == nullptr || process_driver->process_ != ::getpid()) return nullptr;
  for (const auto& device : process_driver->devices_) {
    if (device->is_active()) return device.get();
  }
  return nullptr;
}

Result<Driver*> Driver::get() {
  const std::scoped_lock lock(process_mutex);
  Driver*& driver = process_driver;
  if (driver == nullptr) {
    if (process_has_none) return *process_has_none;
    auto loaded = load();
    if (!loaded) return loaded.error();
    driver = loaded->release();
  }
  if (driver->process_ != ::getpid()) {
    return no_driver("CUDA was initialized before this process was forked", "start workers by spawning, not forking");
  }
  return driver;
}

Result<std::unique_ptr<Driver>> Driver::load() {
  void* library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    process_has_none = no_driver(reason != nullptr ? reason : library_name,
                                 "install NVIDIA's driver; in a container, start it with GPU support (--gpus all)");
    return *process_has_none;
  }
  std::unique_ptr<Driver> driver(new Driver);
  RelaxedApi& api = driver->api_;
  std::string missing;
#define PENSTOCK_CUDA_LOOK_UP(member, symbol, arguments) \
  if (!look_up(library, #symbol, api.member) && missing.empty()) missing = #symbol;
  PENSTOCK_CUDA_REQUIRED(PENSTOCK_CUDA_LOOK_UP)
#undef PENSTOCK_CUDA_LOOK_UP
#define PENSTOCK_CUDA_LOOK_UP(member, symbol, arguments) look_up(library, #symbol, api.member);
  PENSTOCK_CUDA_OPTIONAL(PENSTOCK_CUDA_LOOK_UP)
#undef PENSTOCK_CUDA_LOOK_UP
  const std::string update = "update NVIDIA's driver to one for CUDA 11 or newer";
  if (!missing.empty()) return no_driver("it has no " + missing + ", so it is too old", update);
  if (const CuResult result = api.init(0); result != cu_success) {
    Error error = driver->error(result, "initialize CUDA", "run nvidia-smi: if that fails too, the driver is broken");
    error.code = Code::no_device;
    if (result == cu_no_device) error.hint = "look at CUDA_VISIBLE_DEVICES, and whether nvidia-smi lists a GPU";
    return error;
  }
  api.driver_get_version(&driver->version_);
  if (driver->version_ < oldest_version) {
    return no_driver("it is for CUDA " + std::to_string(driver->version_ / 1000) + ", which is too old", update);
  }
  driver->process_ = ::getpid();
  if (auto status = driver->find_devices(); !status) return status.error();
  return driver;
}

Status Driver::find_devices() {
  int count = 0;
  if (const CuResult result = api_.device_get_count(&count); result != cu_success) {
    return error(result, "count the GPUs");
  }
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CuDevice handle = 0;
    if (const CuResult result = api_.device_get(&handle, ordinal); result != cu_success) {
      return error(result, "look at GPU " + std::to_string(ordinal));
    }
    const auto attribute = [&](int which) {
      int value = 0;
      return api_.device_get_attribute(&value, which, handle) == cu_success ? value : 0;
    };
    std::array<char, 128> name{};
    api_.device_get_name(name.data(), static_cast<int>(name.size()) - 1, handle);
    std::size_t memory = 0;
    api_.device_total_mem(&memory, handle);
    Gpu info;
    info.domain = Domain::cuda(static_cast<std::uint16_t>(ordinal));
    info.name = name.data();
    info.pci_address = pci_address(attribute(cu_attribute_pci_domain_id), attribute(cu_attribute_pci_bus_id),
                                   attribute(cu_attribute_pci_device_id));
    info.memory_bytes = memory;
    info.compute_major = attribute(cu_attribute_compute_capability_major);
    info.compute_minor = attribute(cu_attribute_compute_capability_minor);
    info.copy_engines = attribute(cu_attribute_async_engine_count);
    info.gpu_direct_rdma = attribute(cu_attribute_gpu_direct_rdma_supported) != 0;
    info.dma_buf = attribute(cu_attribute_dma_buf_supported) != 0;
    info.driver_cuda_version = version_;
    info.kernels = has_kernels_for(info.compute_major, info.compute_minor);
    int node = -1;
    if (api_.device_get_attribute(&node, cu_attribute_host_numa_id, handle) == cu_success) info.numa_node = node;
    devices_.push_back(std::make_unique<Device>(*this, handle, std::move(info)));
  }
  return {};
}

Result<Device*> Driver::device(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= devices_.size()) {
    const std::size_t count = devices_.size();
    return Error{Code::no_device, 0,
                 "there is no cuda:" + std::to_string(ordinal) + ": this process sees " + std::to_string(count) +
                     (count == 1 ? " GPU" : " GPUs"),
                 count == 0 ? "look at CUDA_VISIBLE_DEVICES and nvidia-smi"
                            : "use cuda:0 to cuda:" + std::to_string(count - 1) + "; look at CUDA_VISIBLE_DEVICES"};
  }
  Device* device = devices_[static_cast<std::size_t>(ordinal)].get();
  if (auto status = device->activate(); !status) return status.error();
  return device;
}

Result<Region> Driver::find(const void* pointer, std::size_t bytes) {
  const RelaxedCaptureMode mode;  // one exchange for all questions
  const CuDevicePtr address = device_address(static_cast<const std::byte*>(pointer));
  unsigned type = 0;
  int ordinal = -1;
  CuResult result = api_.pointer_get_attribute(&type, cu_pointer_memory_type, address);
  if (result == cu_success) result = api_.pointer_get_attribute(&ordinal, cu_pointer_device_ordinal, address);
  if (result != cu_success || type != cu_memory_type_device || ordinal < 0) {
    if (code_from_result(result) == Code::device_lost) return error(result, "look up a pointer");
    return Error{Code::device_error, result, "the pointer is not GPU memory that CUDA knows",
                 "was it freed, or is it host memory?"};
  }
  const Domain domain = Domain::cuda(static_cast<std::uint16_t>(ordinal));
  auto range = range_at(address);
  if (!range) return Region{device_pointer(address), SIZE_MAX - address, domain};
  while (is_mapped(address) && range->end - address < bytes) {
    int next_ordinal = -1;
    const bool is_same_device =
        api_.pointer_get_attribute(&next_ordinal, cu_pointer_device_ordinal, range->end) == cu_success &&
        next_ordinal == ordinal && is_mapped(range->end);
    const auto next = is_same_device ? range_at(range->end) : std::nullopt;
    if (!next || next->end <= range->end) break;
    range->end = next->end;
  }
  return Region{device_pointer(range->start), range->end - range->start, domain};
}

bool Driver::is_one_allocation(const std::byte* pointer) const {
  const RelaxedCaptureMode mode;
  return range_at(device_address(pointer)) && !is_mapped(device_address(pointer));
}

std::optional<std::uint64_t> Driver::buffer_id(const std::byte* pointer) const {
  unsigned long long id = 0;
  const CuResult result = api_.pointer_get_attribute(&id, cu_pointer_buffer_id, device_address(pointer));
  return result == cu_success ? std::optional<std::uint64_t>(id) : std::nullopt;
}

std::optional<Driver::AddressRange> Driver::range_at(CuDevicePtr address) const {
  CuDevicePtr start = 0;
  std::size_t size = 0;
  if (api_.pointer_get_attribute(&start, cu_pointer_range_start, address) != cu_success ||
      api_.pointer_get_attribute(&size, cu_pointer_range_size, address) != cu_success || start > address) {
    return std::nullopt;
  }
  return AddressRange{start, start + size};
}

bool Driver::is_mapped(CuDevicePtr address) const {
  unsigned type = 0;
  bool is_allocated = true;
  void* pool = nullptr;
  return api_.pointer_get_attribute(&type, cu_pointer_memory_type, address) == cu_success &&
         type == cu_memory_type_device &&
         api_.pointer_get_attribute(&is_allocated, cu_pointer_is_legacy_ipc_capable, address) == cu_success &&
         !is_allocated &&
         api_.pointer_get_attribute(static_cast<void*>(&pool), cu_pointer_mempool_handle, address) == cu_success &&
         pool == nullptr;
}

}  // namespace penstock::cuda

namespace penstock {

Result<std::vector<Gpu>> list_gpus() {
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  std::vector<Gpu> gpus;
  for (const auto& device : (*driver)->devices()) gpus.push_back(device->info());
  return gpus;
}

Result<Region> find_cuda_allocation(const void* pointer, std::size_t size_bytes) {
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  auto whole = (*driver)->find(pointer, size_bytes);
  if (!whole) return whole;
  if (size_bytes > whole->size_bytes - static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - whole->data)) {
    return Error{Code::out_of_range, 0,
                 std::to_string(size_bytes) + " bytes reach past the end of the allocation on " + whole->domain.name(),
                 "give a pointer and a size within one allocation"};
  }
  return whole;
}

Result<Region> find_cuda_region(const void* pointer, std::size_t size_bytes) {
  const auto whole = find_cuda_allocation(pointer, size_bytes);
  if (!whole) return whole.error();
  return Region{const_cast<std::byte*>(static_cast<const std::byte*>(pointer)), size_bytes, whole->domain};
}

Status copy(Region to, Region from) {
  if (to.size_bytes != from.size_bytes) {
    return Error{Code::invalid_argument, 0, "copy: regions of different sizes", "give two of the same size"};
  }
  if (to.size_bytes == 0) return {};
  if (to.data == nullptr || from.data == nullptr) {
    return Error{Code::invalid_argument, 0, "copy: memory at address 0", "give memory of the size of the copy"};
  }
  if (to.domain.host_accessible() && from.domain.host_accessible()) {
    std::memmove(to.data, from.data, to.size_bytes);
    return {};
  }
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  const auto device = (*driver)->device((to.domain.host_accessible() ? from : to).domain.device());
  if (!device) return device.error();
  return (*device)->copy_and_wait(to, from);
}

namespace {

bool is_valid(const StridedRows& rows) {
  return rows.memory.data != nullptr && rows.row_bytes != 0 && rows.pitch_bytes >= rows.row_bytes &&
         rows.memory.size_bytes >= rows.row_bytes && (rows.memory.size_bytes - rows.row_bytes) % rows.pitch_bytes == 0;
}

// The one whose GPU does the copy; the host's where none does.
Domain domain_of(const RowsCopy& copy) {
  return (copy.to.memory.domain.host_accessible() ? copy.from : copy.to).memory.domain;
}

void copy_rows_on_host(const RowsCopy& copy) {
  for (std::size_t row = 0; row < cuda::count_rows(copy.to); ++row) {
    std::memcpy(copy.to.memory.data + row * copy.to.pitch_bytes, copy.from.memory.data + row * copy.from.pitch_bytes,
                copy.to.row_bytes);
  }
}

}  // namespace

Status copy_rows(std::span<const RowsCopy> copies) {
  for (const RowsCopy& copy : copies) {
    const bool fit = is_valid(copy.to) && is_valid(copy.from) && copy.to.row_bytes == copy.from.row_bytes &&
                     cuda::count_rows(copy.to) == cuda::count_rows(copy.from);
    if (fit) continue;
    return Error{Code::invalid_argument, 0, "copy_rows: not the same rows on both sides",
                 "give memory that ends with the last row"};
  }
  for (std::size_t i = 0; i < copies.size();) {
    const Domain domain = domain_of(copies[i]);
    if (domain.host_accessible()) {
      copy_rows_on_host(copies[i++]);
      continue;
    }
    const std::size_t first = i;
    while (i < copies.size() && domain_of(copies[i]) == domain) ++i;
    const auto driver = cuda::Driver::get();
    if (!driver) return driver.error();
    const auto device = (*driver)->device(domain.device());
    if (!device) return device.error();
    if (Status status = (*device)->copy_rows_and_wait(copies.subspan(first, i - first)); !status) return status;
  }
  return {};
}

}  // namespace penstock
