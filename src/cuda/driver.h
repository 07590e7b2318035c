// Driver: the CUDA driver of this process, loaded at run time. Device: one GPU and its primary context, which the CUDA
// runtime and PyTorch use too.
//
// Thread safety: any thread. Lifetime: the process's. CUDA can't be unloaded, and memory that streams wait on must stay
// whatever becomes of a Context.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/relaxed.h"
#include "cuda/stream_pool.h"
#include "penstock/gpu.h"
#include "penstock/region.h"
#include "penstock/result.h"

namespace penstock::cuda {

class Driver;

class Device {
 public:
  Device(Driver& driver, CuDevice handle, Gpu info);

  Driver& driver() const { return driver_; }
  const RelaxedApi& api() const;
  const Gpu& info() const { return info_; }
  int ordinal() const { return info_.domain.device(); }

  // Makes the primary context, unless that was done, and has the kernels loaded. Everything that needs them comes
  // after. Code::would_deadlock where there is no context yet and a stream waits for us.
  Status activate();
  bool is_active() const { return active_.load(std::memory_order_acquire); }
  CuContext context() const { return context_; }

  // Where the GPU was busy when the context was made, they may come later.
  const KernelTable& kernels() const { return kernels_; }

  Status copy_and_wait(Region to, Region from);
  // REQUIRES: checked by copy_rows, and with memory of this device on one side each.
  Status copy_rows_and_wait(std::span<const RowsCopy> copies);

  // Streams of the user's that wait for requests of ours now. Copies go other ways meanwhile.
  std::atomic<std::uint32_t>& stream_waits() { return stream_waits_; }

  // Events without timing. Those given back are used again.
  Result<CuEvent> take_event();
  void give_back_event(CuEvent event);
  // A stream of ours, which others may use at the same time. It does not wait for the legacy null stream.
  CuStream take_stream();
  void give_back_stream(CuStream stream) { streams_.give_back(stream); }

 private:
  // Waits for the work, on a stream of ours.
  CuResult on_our_stream(const std::function<CuResult(CuStream)>& work);
  Status retain_context();
  class LoadsKernels;

  Driver& driver_;
  const CuDevice handle_;
  const Gpu info_;
  std::mutex mutex_;
  std::atomic<bool> active_{false};
  std::atomic<std::uint32_t> stream_waits_{0};
  CuContext context_ = nullptr;
  KernelTable kernels_;
  StreamPool streams_;
  std::size_t events_made_ = 0;
  std::vector<CuEvent> free_events_;
};

// Makes a device's primary context current on this thread, and its capture mode relaxed, for a scope. REQUIRES: the
// device is active.
class Current {
 public:
  explicit Current(const Device& device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const RelaxedCaptureMode mode_;  // one exchange for all calls of the scope
  const Device& device_;
  const bool pushed_;
};

class Driver {
 public:
  // Loads and initializes it on the first call. Code::no_device with the reason where that fails. A process that finds
  // no library of the driver does not look again.
  static Result<Driver*> get();

  // A GPU that this process uses already, or null. Loads nothing.
  static Device* device_in_use();

  const RelaxedApi& api() const { return api_; }
  int version() const { return version_; }
  const std::vector<std::unique_ptr<Device>>& devices() const { return devices_; }
  // Code::no_device for a number that is not there. The device is active.
  Result<Device*> device(int ordinal);

  // Finds the device of a pointer, and the whole allocation around it. Virtual memory may be mapped in pieces: those
  // that follow each other count as one, as far as `bytes` reach.
  Result<Region> find(const void* pointer, std::size_t bytes);
  // Whether it lies in one allocation that the driver knows the ends of, and not in mappings that can be replaced.
  bool is_one_allocation(const std::byte* pointer) const;

  // The number of the allocation at this address, which no other ever gets; nothing where there is none.
  std::optional<std::uint64_t> buffer_id(const std::byte* pointer) const;

  Error error(CuResult result, std::string what, std::string hint = {}) const;

 private:
  Driver() = default;
  static Result<std::unique_ptr<Driver>> load();
  Status find_devices();
  struct AddressRange {
    CuDevicePtr start;
    CuDevicePtr end;
  };
  std::optional<AddressRange> range_at(CuDevicePtr address) const;
  // Virtual memory of a GPU: not allocated as a whole, alone or from a pool.
  bool is_mapped(CuDevicePtr address) const;

  RelaxedApi api_;
  int version_ = 0;
  pid_t process_ = 0;
  std::vector<std::unique_ptr<Device>> devices_;
};

// For Code::device_lost.
inline constexpr const char* device_lost_hint =
    "this process can't use the GPU any more: start a new one, and look for the kernel that failed";

// What a CUDA result means in our list.
Code code_from_result(CuResult result);

}  // namespace penstock::cuda
