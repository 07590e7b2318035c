#include "memory/allocation.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "cuda/quiet.h"

namespace penstock::memory {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

// 0 if rounding up overflows.
std::size_t round_up(std::size_t value, std::size_t multiple) {
  const std::size_t rounded = (value + multiple - 1) / multiple * multiple;
  return value <= rounded ? rounded : 0;
}

Error no_memory(std::size_t size_bytes, int error_number) {
  Error error = system_error(error_number, "allocate " + std::to_string(size_bytes) + " bytes",
                             "ask for less, or raise the memory limit of the machine, container or process");
  error.code = Code::out_of_memory;
  return error;
}

Error cannot_lock(std::size_t size_bytes, int error_number) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string allowed = limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur) + " bytes";
  Error error = system_error(
      error_number, "lock " + std::to_string(size_bytes) + " bytes of memory (RLIMIT_MEMLOCK is " + allowed + ")",
      "raise it (ulimit -l unlimited, docker run --ulimit memlock=-1, or CAP_IPC_LOCK), "
      "or use host memory");
  error.code = Code::out_of_memory;
  return error;
}

Error over_budget(std::size_t size_bytes, const Budget& budget) {
  return {Code::over_budget, 0,
          "allocate " + std::to_string(size_bytes) + " bytes of pinned memory: the budget is " +
              std::to_string(budget.limit_bytes()) + " bytes, and " + std::to_string(budget.used_bytes()) +
              " of them are in use" + cuda::describe_unfreed(cuda::Quiet::Kind::pinned),
          "free pinned buffers, or raise pinned_budget_bytes"};
}

// What was freed a moment ago may not be back yet.
bool charge_in_time(Budget& budget, std::uint64_t bytes) {
  if (budget.charge(bytes)) return true;
  cuda::Quiet::of_process().catch_up();
  return budget.charge(bytes);
}

// Maps `size` bytes at a multiple of `alignment`, by mapping more and giving the ends back.
std::byte* map_aligned(std::size_t size, std::size_t alignment, std::size_t page_bytes) {
  const std::size_t slack = alignment > page_bytes ? alignment - page_bytes : 0;
  if (size + slack < size) {
    errno = ENOMEM;
    return nullptr;
  }
  void* mapped = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  const std::size_t head = (alignment - reinterpret_cast<std::uintptr_t>(begin) % alignment) % alignment;
  if (head > 0) ::munmap(begin, head);
  if (slack > head) ::munmap(begin + head + size, slack - head);
  return begin + head;
}

}  // namespace

Result<std::unique_ptr<Allocation>> Allocation::create(const AllocationOptions& options) {
  std::unique_ptr<Allocation> allocation(new Allocation);
  allocation->region_.domain = options.domain;
  if (options.size_bytes == 0) return allocation;
  if (options.domain.kind() == Domain::Kind::cuda) {
    auto block = options.pool->take(options.size_bytes);
    if (!block) return block.error();
    allocation->pool_ = options.pool;
    allocation->block_ = *block;
    allocation->region_ = {block->data, options.size_bytes, options.domain};
    return allocation;
  }

  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t size = round_up(options.size_bytes, page_bytes);
  if (size == 0) return no_memory(options.size_bytes, ENOMEM);
  if (options.budget) {
    if (!charge_in_time(*options.budget, size)) return over_budget(options.size_bytes, *options.budget);
    allocation->budget_ = options.budget;
    allocation->charged_bytes_ = size;
  }

  const bool huge = options.huge_pages && size >= huge_page_bytes;
  std::byte* data = map_aligned(size, size >= huge_page_bytes ? huge_page_bytes : page_bytes, page_bytes);
  if (data == nullptr) return no_memory(options.size_bytes, errno);
  allocation->region_ = {data, options.size_bytes, options.domain};
  allocation->mapped_bytes_ = size;
  if (huge) ::madvise(data, size, MADV_HUGEPAGE);  // a wish: kernels without huge pages refuse it
  // Sanitizers turn mlock into nothing, but not mlock2: memory is locked, and refused, under them too.
  if (options.lock && ::mlock2(data, size, 0) != 0) return cannot_lock(options.size_bytes, errno);
  return allocation;
}

std::unique_ptr<Allocation> Allocation::adopt(Region memory, std::shared_ptr<const void> owner) {
  std::unique_ptr<Allocation> allocation(new Allocation);
  allocation->region_ = memory;
  allocation->mapped_bytes_ = memory.size_bytes;
  allocation->owner_ = std::move(owner);
  return allocation;
}

// Mapped memory, or that of somebody else, goes back to the system and its budget.
struct Mapping {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  std::uint64_t charged_bytes = 0;
  std::shared_ptr<Budget> budget;
  std::shared_ptr<const void> owner;

  void end() const {
    if (size_bytes > 0 && !owner) ::munmap(data, size_bytes);  // unlocks too
    if (budget) budget->refund(charged_bytes);
  }
};

// Unregistering waits for all that the GPU is doing.
class Allocation::Registration : public cuda::Deferred {
 public:
  Registration(cuda::Device& device, Mapping mapping) : device_(device), mapping_(std::move(mapping)) {}

  static void end(std::shared_ptr<Registration> registration) {
    cuda::Quiet& quiet = cuda::Quiet::of_process();
    quiet.note_unfreed(cuda::Quiet::Kind::pinned, registration->mapping_.size_bytes);
    quiet.defer(std::move(registration));
  }

 private:
  bool run() override {
    {
      const cuda::Current current(device_);
      device_.api().host_unregister(mapping_.data);
    }
    mapping_.end();
    cuda::Quiet::of_process().note_freed(cuda::Quiet::Kind::pinned, mapping_.size_bytes);
    return false;
  }

  cuda::Device& device_;
  const Mapping mapping_;
};

Status Allocation::check_unfreed() const {
  cuda::Quiet& quiet = cuda::Quiet::of_process();
  const auto fits = [&] { return quiet.unfreed().pinned_bytes + mapped_bytes_ <= budget_->limit_bytes(); };
  if (!budget_ || fits()) return {};
  quiet.catch_up();
  return fits() ? Status() : over_budget(region_.size_bytes, *budget_);
}

Status Allocation::register_with(cuda::Device& device) {
  if (registration_ || mapped_bytes_ == 0) return {};
  if (Status status = check_unfreed(); !status) return status;
  const std::string what = "register " + std::to_string(mapped_bytes_) + " bytes with CUDA";
  // Before there is something to unregister, which needs it.
  auto registration =
      std::make_shared<Registration>(device, Mapping{region_.data, mapped_bytes_, charged_bytes_, budget_, owner_});
  cuda::Quiet::of_process().get_ready();
  // Pages that are there already are registered several times faster than those that the driver must ask for.
  ::madvise(region_.data, mapped_bytes_, MADV_POPULATE_WRITE);
  const cuda::Current current(device);
  constexpr unsigned flags = cuda::cu_host_register_portable | cuda::cu_host_register_device_map;
  cuda::CuResult result = device.api().host_register(region_.data, mapped_bytes_, flags);
  if (result != cuda::cu_success) return device.driver().error(result, what);
  registration_ = std::move(registration);
  cuda::CuDevicePtr address = 0;
  result = device.api().host_get_device_pointer(&address, region_.data, 0);
  if (result != cuda::cu_success) return device.driver().error(result, what);
  host_to_device_ = cuda::device_pointer(address) - region_.data;
  return {};
}

void Allocation::on_free(const void* owner, std::function<void()> action) const {
  const std::scoped_lock lock(on_free_mutex_);
  const bool is_known =
      std::any_of(on_free_.begin(), on_free_.end(), [=](const auto& one) { return one.owner == owner; });
  if (!is_known) on_free_.push_back({owner, std::move(action)});
}

Allocation::~Allocation() {
  for (const OnFree& one : on_free_) one.action();
  if (pool_) pool_->give_back(block_);
  if (registration_) {
    Registration::end(std::move(registration_));
  } else {
    Mapping{region_.data, mapped_bytes_, charged_bytes_, std::move(budget_), std::move(owner_)}.end();
  }
}

}  // namespace penstock::memory
