#include "cuda/control_memory.h"

#include <sys/mman.h>

#include <bit>
#include <cerrno>

#include "cuda/quiet.h"

namespace penstock::cuda {

namespace {

std::size_t size_class(std::size_t size_bytes) {
  const std::size_t cells = (size_bytes + ControlMemory::smallest_bytes - 1) / ControlMemory::smallest_bytes;
  return static_cast<std::size_t>(std::bit_width(std::bit_ceil(cells)) - 1);
}

// One that the GPU can't reach goes back.
class UnusedPage : public Deferred {
 public:
  explicit UnusedPage(Device& device) : device_(device) {}
  void take(void* page) { page_ = page; }

 private:
  bool run() override {
    const Current current(device_);
    device_.api().host_unregister(page_);
    ::munmap(page_, ControlMemory::page_bytes);
    return false;
  }

  Device& device_;
  void* page_ = nullptr;
};

}  // namespace

ControlMemory& ControlMemory::of_process() {
  static auto* memory = new ControlMemory;
  return *memory;
}

Result<ControlMemory::Cell> ControlMemory::take(Device& device, std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > largest_bytes) {
    return Error{Code::internal, 0, "a cell of control memory of " + std::to_string(size_bytes) + " bytes", ""};
  }
  const std::size_t which = size_class(size_bytes);
  if (const auto cell = take_free(which)) return *cell;
  const std::scoped_lock adding(adding_mutex_);
  while (true) {
    if (const auto cell = take_free(which)) return *cell;
    if (auto status = add_page(device, which); !status) return status.error();
  }
}

std::optional<ControlMemory::Cell> ControlMemory::take_free(std::size_t which) {
  const std::scoped_lock lock(mutex_);
  auto& free = free_.at(which);
  if (free.empty()) return std::nullopt;
  const Cell cell = free.back();
  free.pop_back();
  return cell;
}

void ControlMemory::give_back(const Cell& cell) {
  const std::scoped_lock lock(mutex_);
  free_.at(size_class(cell.size_bytes)).push_back(cell);
}

Status ControlMemory::add_page(Device& device, std::size_t which) {
  const std::size_t cell_bytes = smallest_bytes << which;
  std::size_t& made = made_.at(which);
  auto& free = free_.at(which);
  {
    const std::scoped_lock lock(mutex_);
    free.reserve(made + page_bytes / cell_bytes);  // to give one back takes no memory
  }
  auto unused = std::make_shared<UnusedPage>(device);  // before there is something to unregister, which needs it
  void* page = ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return system_error(errno, "allocate control memory");
  const Current current(device);
  const RelaxedApi& api = device.api();
  CuDevicePtr address = 0;
  constexpr unsigned flags = cu_host_register_portable | cu_host_register_device_map;
  CuResult result = api.host_register(page, page_bytes, flags);
  if (result != cu_success) {
    ::munmap(page, page_bytes);
    return device.driver().error(result, "register control memory with CUDA");
  }
  result = api.host_get_device_pointer(&address, page, 0);
  if (result != cu_success) {
    unused->take(page);
    Quiet::of_process().defer(std::move(unused));
    return device.driver().error(result, "map control memory for the GPU");
  }
  made += page_bytes / cell_bytes;
  const std::scoped_lock lock(mutex_);
  for (std::size_t offset = 0; offset < page_bytes; offset += cell_bytes) {
    free.push_back({static_cast<std::byte*>(page) + offset, address + offset, cell_bytes});
  }
  return {};
}

}  // namespace penstock::cuda
