// Transport: what a controller driver needs of the way to its device. `soft` is a controller in software; a real one
// is reached through the bus.
//
// Thread safety: registers and mapping from any thread. Lifetime: outlives the driver that uses it, its queues, and
// every mapping.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "penstock/result.h"

namespace penstock::nvme {

// Orders earlier stores to memory that a device reads before a later store to one of its registers.
inline void order_before_device() {
#if defined(__aarch64__)
  asm volatile("dmb oshst" ::: "memory");
#else
  std::atomic_signal_fence(std::memory_order_release);
#endif
}
// Orders a load that found what a device wrote before later loads of the rest.
inline void order_after_device() {
#if defined(__aarch64__)
  asm volatile("dmb oshld" ::: "memory");
#else
  std::atomic_signal_fence(std::memory_order_acquire);
#endif
}

// What was stored before is seen by others before what is loaded after is looked at. Between a register and a flag, so
// no race is hidden from the thread sanitizer, which does not see fences and has the compiler warn of that.
inline void store_before_load() {
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#pragma GCC diagnostic pop
}

// A controller in software that may sleep when nobody has rung for a while.
class Sleeper {
 public:
  virtual ~Sleeper() = default;
  // After a store to a register: the controller says that it sleeps, and then looks at its registers once more.
  void rung() {
    store_before_load();
    if (asleep_.load(std::memory_order_relaxed) && asleep_.exchange(false)) wake();
  }

 protected:
  std::atomic<bool> asleep_{false};

 private:
  virtual void wake() = 0;
};

// The registers of a controller, mapped. A plain range of memory, so that a CUDA kernel can be given the same
// doorbells.
class Registers {
 public:
  Registers(std::byte* base, std::size_t size_bytes, Sleeper* sleeper = nullptr)
      : base_(base), size_bytes_(size_bytes), sleeper_(sleeper) {}

  std::size_t size_bytes() const { return size_bytes_; }
  // As if no more were mapped.
  Registers first(std::size_t size_bytes) const { return {base_, size_bytes, sleeper_}; }
  std::uint32_t read32(std::uint32_t offset) const { return __atomic_load_n(word(offset), __ATOMIC_ACQUIRE); }
  // As two reads of 32 bits, which every controller must allow (NVMe 2.0 §3.1.3).
  std::uint64_t read64(std::uint32_t offset) const {
    const std::uint64_t low = read32(offset);
    return low | std::uint64_t{read32(offset + 4)} << 32;
  }
  void write32(std::uint32_t offset, std::uint32_t value) { store(word(offset), value); }
  void write64(std::uint32_t offset, std::uint64_t value) {
    write32(offset, static_cast<std::uint32_t>(value));
    write32(offset + 4, static_cast<std::uint32_t>(value >> 32));
  }
  std::uint32_t* word(std::uint32_t offset) const { return reinterpret_cast<std::uint32_t*>(base_ + offset); }
  // What was stored to memory before is seen by a controller that sees the new value.
  void store(std::uint32_t* register_word, std::uint32_t value) const {
    order_before_device();
    __atomic_store_n(register_word, value, __ATOMIC_RELEASE);
    if (sleeper_ != nullptr) sleeper_->rung();
  }

 private:
  std::byte* base_;
  std::size_t size_bytes_;
  Sleeper* sleeper_;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // "0000:01:00.0", or the name of what a controller in software serves.
  virtual const std::string& name() const = 0;
  virtual Registers registers() = 0;

  // Makes memory reachable by the controller; the I/O address of its first byte, from which on the addresses are
  // contiguous. REQUIRES: data and size are multiples of the system's page.
  virtual Result<std::uint64_t> map(std::byte* data, std::size_t size_bytes) = 0;
  // REQUIRES: as mapped, and the controller does not use it any more.
  virtual void unmap(std::uint64_t address, std::size_t size_bytes) = 0;

  // A descriptor that becomes readable when the controller raises the interrupt; nothing where there are none, and
  // completions are looked for again and again. Reading 8 bytes acknowledges it. REQUIRES: vector < interrupts().
  virtual std::uint32_t interrupts() const { return 0; }
  virtual Result<int> interrupt(std::uint32_t vector) = 0;

  // For a controller that does not obey a reset: once this succeeds it can't reach memory any more, and is of no use.
  virtual Status isolate() = 0;
};

}  // namespace penstock::nvme
