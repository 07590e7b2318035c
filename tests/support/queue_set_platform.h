// Threads of the CPU in place of warps, for tests of penstock/queue_set.h.
#pragma once

#include <atomic>
#include <cstring>

#include "nvme/cpu_platform.h"
#include "penstock/queue_set.h"

namespace penstock::test {

// A group is one thread.
class ThreadPlatform : public nvme::CpuPlatform {
 public:
  ThreadPlatform() : nvme::CpuPlatform(registers()) {}

  static void copy(unsigned char* to, const unsigned char* from, std::uint32_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  static void note(std::uint32_t& word) { __atomic_store_n(&word, 1U, __ATOMIC_RELEASE); }
  static std::uint64_t of_first(bool, std::uint64_t given) { return given; }
  static std::uint32_t spread() {
    static std::atomic<std::uint32_t> next{0};
    return next.fetch_add(7, std::memory_order_relaxed);
  }

 private:
  // Doorbells are words of the set itself.
  static const nvme::Registers& registers() {
    static const nvme::Registers none(nullptr, 0);
    return none;
  }
};

// What a kernel does, by a thread. REQUIRES: a set in host memory.
class ThreadIo {
 public:
  ThreadIo(device::QueueSet* set, std::uint32_t queue) : set_(*set), io_(set_, platform_, queue % set->queue_count) {}

  // As device::Queues has them.
  device::IoResult read(const device::Extent& extent, void* to, std::uint64_t timeout_ns = 0) {
    return io_.read(extent, to, io_.deadline_after(timeout_ns));
  }
  device::IoResult write(const device::Extent& extent, const void* from, std::uint64_t timeout_ns = 0) {
    return io_.write(extent, from, io_.deadline_after(timeout_ns));
  }
  device::Pending begin_read(const device::Extent& extent) { return io_.begin_read(extent); }
  device::IoResult finish(device::Pending& pending, void* to) { return io_.finish(pending, to, io_.deadline_after(0)); }

 private:
  device::QueueSet& set_;
  ThreadPlatform platform_;
  device::QueueSetIo<ThreadPlatform> io_;
};

}  // namespace penstock::test
