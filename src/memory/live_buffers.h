// LiveBuffers: the memory of all Buffers of the process, by address. Whoever works on memory that it was lent finds
// here what it must hold meanwhile, so that a Buffer may be destroyed at any time: its memory goes with its last
// holder.
//
// One for the process, because a Buffer of one Context may be lent to another.
//
// Thread safety: any thread; also after a fork, whatever other threads were doing. Lifetime: the process's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "memory/allocation.h"

namespace penstock::memory {

class LiveBuffers {
 public:
  struct Extent {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;  // past the last byte

    bool contains(const std::byte* data) const {
      const auto address = reinterpret_cast<std::uintptr_t>(data);
      return begin <= address && address < end;
    }
    // REQUIRES: contains(data)
    bool covers(const std::byte* data, std::size_t size) const {
      return size <= end - reinterpret_cast<std::uintptr_t>(data);
    }
  };
  // What lies around an address: the memory of a Buffer, or what is between two of them.
  struct Place : Extent {
    std::shared_ptr<const Allocation> held;  // null: no Buffer's
  };

  static LiveBuffers& of_process();

  // Known until the last holder lets go of it.
  std::shared_ptr<const Allocation> add(std::unique_ptr<Allocation> allocation);
  Place find(const std::byte* data) const;

 private:
  struct Entry {
    std::uintptr_t end;
    std::weak_ptr<const Allocation> allocation;
  };

  LiveBuffers() = default;
  void remove(const Allocation& allocation);

  mutable std::mutex mutex_;                 // held for a moment; never while memory is freed
  std::map<std::uintptr_t, Entry> entries_;  // by their first byte
  std::atomic<std::uint64_t> version_{1};    // of the entries; changed with the lock
};

}  // namespace penstock::memory
