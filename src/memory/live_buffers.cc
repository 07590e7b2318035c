#include "memory/live_buffers.h"

#include <pthread.h>

#include <iterator>
#include <utility>

namespace penstock::memory {

namespace {

std::uintptr_t address_of(const std::byte* data) {
  return reinterpret_cast<std::uintptr_t>(data);
}

}  // namespace

LiveBuffers& LiveBuffers::of_process() {
  // Never destroyed: Buffers may be, after everything else.
  static LiveBuffers* const buffers = [] {
    auto* const made = new LiveBuffers;
    // A child must not find it locked by a thread that stayed with its parent.
    ::pthread_atfork([] { of_process().mutex_.lock(); }, [] { of_process().mutex_.unlock(); },
                     [] { of_process().mutex_.unlock(); });
    return made;
  }();
  return *buffers;
}

std::shared_ptr<const Allocation> LiveBuffers::add(std::unique_ptr<Allocation> allocation) {
  if (allocation->region().size_bytes == 0) return allocation;
  std::shared_ptr<const Allocation> shared(allocation.release(), [this](const Allocation* ended) {
    remove(*ended);
    delete ended;
  });
  const Region region = shared->region();
  const std::uintptr_t begin = address_of(region.data);
  const std::scoped_lock lock(mutex_);
  entries_[begin] = {begin + region.size_bytes, shared};
  return shared;
}

// Before the memory is freed: whoever gets it next may be a Buffer too.
void LiveBuffers::remove(const Allocation& allocation) {
  const std::scoped_lock lock(mutex_);
  entries_.erase(address_of(allocation.region().data));
}

LiveBuffers::Place LiveBuffers::find(const std::byte* address) const {
  const std::scoped_lock lock(mutex_);
  const auto after = entries_.upper_bound(address_of(address));
  Place place{0, after != entries_.end() ? after->first : UINTPTR_MAX, nullptr};
  if (after == entries_.begin()) return place;
  const auto& [begin, entry] = *std::prev(after);
  if (entry.end <= address_of(address)) {
    place.begin = entry.end;
    return place;
  }
  return {begin, entry.end, entry.allocation.lock()};
}

}  // namespace penstock::memory
