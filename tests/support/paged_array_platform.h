// Threads of the CPU in place of warps, for tests of penstock/paged_array.h.
#pragma once

#include "penstock/paged_array.h"
#include "support/queue_set_platform.h"

namespace penstock::test {

class ArrayThreadPlatform : public ThreadPlatform {
 public:
  using Passed = ArrayThreadPlatform&;

  explicit ArrayThreadPlatform(std::uint32_t queue = 0) : queue_(queue) {}

  static std::uint64_t add_acquire(std::uint64_t& word, std::uint64_t value) {
    return __atomic_fetch_add(&word, value, __ATOMIC_ACQUIRE);
  }
  static void add(std::uint64_t& word, std::uint64_t value) { __atomic_fetch_add(&word, value, __ATOMIC_RELAXED); }
  static void add_release(std::uint64_t& word, std::uint64_t value) {
    __atomic_fetch_add(&word, value, __ATOMIC_RELEASE);
  }
  static std::uint64_t of_same(std::uint32_t, std::uint64_t given) { return given; }
  static std::uint32_t stripe() { return 0; }
  std::uint32_t queue_of(std::uint32_t count) const { return queue_ % count; }

 private:
  const std::uint32_t queue_;
};

// What a kernel does, by a thread. REQUIRES: an array in host memory.
class ThreadArray {
 public:
  ThreadArray(device::PagedArray* array, std::uint32_t queue) : array_(*array), queue_(queue) {}

  template <typename T>
  device::IoResult get(std::uint64_t index, T& value) {
    ArrayThreadPlatform platform(queue_);
    device::PagedArrayIo<ArrayThreadPlatform> io(array_, platform);
    return io.visit_each({index * sizeof(T), sizeof(T)}, 0,
                         [&](const unsigned char* bytes) { std::memcpy(&value, bytes, sizeof value); });
  }
  template <typename Use>
  device::IoResult visit(const device::Stretch& stretch, Use use) {
    ArrayThreadPlatform platform(queue_);
    device::PagedArrayIo<ArrayThreadPlatform> io(array_, platform);
    return io.visit_together(stretch, 0, use);
  }

 private:
  device::PagedArray& array_;
  const std::uint32_t queue_;
};

}  // namespace penstock::test
