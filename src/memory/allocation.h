// Allocation: memory taken from the system, and the rules under which it goes back.
//
// Quarantine: intervals that an abandoned operation may still touch; memory that overlaps one is kept until it is
// released. Addresses of GPUs and of the host are of one space, so one Quarantine serves both.
//
// Thread safety: a Quarantine from any thread; an Allocation is owned by one.
// Lifetime: allocations keep their Budget and Quarantine alive (they may outlive the Context, hence shared_ptr). A
// kept allocation and its Quarantine hold each other: memory that is never released stays for the process's life.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "memory/budget.h"
#include "memory/device_pool.h"
#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock::memory {

class Allocation;

class Quarantine {
 public:
  using Token = std::uint64_t;  // never 0
  // A device may touch [data, data + size) from now on.
  Token add(const std::byte* data, std::size_t size);
  // It can't any more. Frees kept memory that nothing overlaps now.
  void release(Token token);
  bool overlaps(const std::byte* data, std::size_t size) const;
  // Frees the allocation now, or keeps it until nothing overlaps.
  void dispose(std::unique_ptr<Allocation> allocation);
  std::uint64_t bytes() const;

 private:
  struct Interval {
    Token token;
    const std::byte* data;
    std::size_t size;
  };
  bool overlaps_locked(const std::byte* data, std::size_t size) const;

  std::atomic<std::size_t> count_{0};  // of intervals; read without the lock when there are none
  mutable std::mutex mutex_;
  Token next_token_ = 1;
  std::vector<Interval> intervals_;
  std::vector<std::unique_ptr<Allocation>> kept_;
};

struct AllocationOptions {
  Domain domain;
  std::size_t size_bytes = 0;
  bool huge_pages = true;                  // where allowed; only for sizes worth it
  bool lock = false;                       // mlock, or fail with the reason
  std::shared_ptr<Budget> budget;          // charged if set
  std::shared_ptr<Quarantine> quarantine;  // never null
  std::shared_ptr<DevicePool> pool;        // for cuda domains, which it is of
};

class Allocation {
 public:
  static Result<std::unique_ptr<Allocation>> create(const AllocationOptions& options);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  Region region() const { return region_; }
  // Makes host memory known to CUDA, so that GPUs copy to and from it by themselves. Its bytes stay.
  // Code::would_deadlock while a stream waits for us.
  Status register_with(cuda::Device& device);
  // What to add to an address of it to get the GPU's, if it is registered.
  std::optional<std::ptrdiff_t> host_to_device() const { return host_to_device_; }
  const std::shared_ptr<Quarantine>& quarantine() const { return quarantine_; }
  // Runs once, just before the memory goes back to the system: detaching from engines.
  void on_free(std::function<void()> action) { on_free_ = std::move(action); }

 private:
  Allocation() = default;
  Region region_;
  std::size_t mapped_bytes_ = 0;
  std::uint64_t charged_bytes_ = 0;
  std::shared_ptr<Budget> budget_;
  std::shared_ptr<DevicePool> pool_;
  DevicePool::Block block_;  // of the pool
  cuda::Device* registered_with_ = nullptr;
  std::optional<std::ptrdiff_t> host_to_device_;
  std::shared_ptr<Quarantine> quarantine_;
  std::function<void()> on_free_;
};

}  // namespace penstock::memory
