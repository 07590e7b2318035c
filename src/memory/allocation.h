// Allocation: memory taken from the system, and the rules under which it goes back.
//
// Thread safety: owned by one; shared where it is a Buffer's (memory/live_buffers.h). Lifetime: keeps its Budget and
// pool alive, since it may outlive the Context, hence shared_ptr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.h"
#include "memory/budget.h"
#include "memory/device_pool.h"
#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock::memory {

struct AllocationOptions {
  Domain domain;
  std::size_t size_bytes = 0;
  bool huge_pages = true;            // where allowed; only for sizes worth it
  bool lock = false;                 // mlock, or fail with the reason
  std::shared_ptr<Budget> budget;    // charged if set
  std::shared_ptr<DevicePool> pool;  // for cuda domains, which it is of
};

class Allocation {
 public:
  static Result<std::unique_ptr<Allocation>> create(const AllocationOptions& options);
  // Memory of the host that is somebody else's: it is there as long as `owner` is, which is let go of at the end.
  static std::unique_ptr<Allocation> adopt(Region memory, std::shared_ptr<const void> owner);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  Region region() const { return region_; }
  // Makes host memory known to CUDA, so that GPUs copy to and from it by themselves. Its bytes stay. Code::over_budget
  // where as much pinned memory as the budget has waits to be freed, since this would have to be freed like that too.
  Status register_with(cuda::Device& device);
  // What to add to an address of it to get the GPU's, if it is registered.
  std::optional<std::ptrdiff_t> host_to_device() const { return host_to_device_; }
  // Runs once, just before the memory goes back to the system: detaching from engines. One for each owner; the first
  // stays. Any thread.
  void on_free(const void* owner, std::function<void()> action) const;

 private:
  friend class FreedLater;
  class Registration;

  Allocation() = default;
  Status check_unfreed() const;
  Region region_;
  std::size_t mapped_bytes_ = 0;
  std::uint64_t charged_bytes_ = 0;
  std::shared_ptr<Budget> budget_;
  std::shared_ptr<DevicePool> pool_;
  DevicePool::Block block_;                     // of the pool
  std::shared_ptr<Registration> registration_;  // shared with Quiet in the end; null: not registered
  std::optional<std::ptrdiff_t> host_to_device_;
  std::shared_ptr<const void> owner_;  // of adopted memory
  struct OnFree {
    const void* owner = nullptr;
    std::function<void()> action;
  };
  mutable std::mutex on_free_mutex_;
  mutable std::vector<OnFree> on_free_;
  mutable std::unique_ptr<const Allocation> next_to_free_;  // FreedLater's
};

}  // namespace penstock::memory
