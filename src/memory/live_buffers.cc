#include "memory/live_buffers.h"

#include <pthread.h>

#include <iterator>
#include <utility>

#include "memory/freed_later.h"
#include "memory/last_found.h"

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
    FreedLater::end(std::unique_ptr<const Allocation>(ended));
  });
  const Region region = shared->region();
  const std::uintptr_t begin = address_of(region.data);
  const std::scoped_lock lock(mutex_);
  entries_[begin] = {begin + region.size_bytes, shared};
  version_.fetch_add(1, std::memory_order_release);
  return shared;
}

// Before the memory is freed: whoever gets it next may be a Buffer too.
void LiveBuffers::remove(const Allocation& allocation) {
  const std::scoped_lock lock(mutex_);
  entries_.erase(address_of(allocation.region().data));
  version_.fetch_add(1, std::memory_order_release);
}

LiveBuffers::Place LiveBuffers::find(const std::byte* data) const {
  using Last = LastFound<const Allocation>;
  const std::uintptr_t address = address_of(data);
  if (const auto* last = Last::find(version_.load(std::memory_order_acquire), address)) {
    return {{last->begin, last->end}, last->value.lock()};
  }
  const std::scoped_lock lock(mutex_);
  Last::Place found{version_.load(std::memory_order_relaxed), 0, UINTPTR_MAX, {}};
  const auto after = entries_.upper_bound(address);
  if (after != entries_.end()) found.end = after->first;
  if (after != entries_.begin()) {
    const auto& [begin, entry] = *std::prev(after);
    found.begin = entry.end;
    if (address < entry.end) found = {found.version, begin, entry.end, entry.allocation};
  }
  Place place{{found.begin, found.end}, found.value.lock()};
  Last::remember(std::move(found));
  return place;
}

}  // namespace penstock::memory
