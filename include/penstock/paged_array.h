// PagedArray: a stretch of a store that kernels index, as it lies in memory of a GPU; and the steps of reading from it,
// for every Platform (see queue_pair.h). Kernels use penstock/device_array.cuh, and programs penstock/gpu_array.h; this
// is what the two agree on.
//
// Pages lie in a PageCache (page_cache.h). What no frame is to be had for is read from the pinned place of a command of
// the set (queue_set.h), without a copy. A group holds pages, or places, only while its `use` runs.
//
// Thread safety: any number of groups. Lifetime: the set of queues, and the memory named here, outlive all of them.
#pragma once

#include "penstock/page_cache.h"

namespace penstock::device {

// Of all structures here, in page_cache.h and below. A kernel that was compiled with another refuses the array.
inline constexpr std::uint32_t array_layout_version = 1000 * layout_version + 1;

// In memory of the GPU, addresses as the GPU sees them.
struct PagedArray {
  std::uint32_t layout = array_layout_version;  // first in every version
  std::uint32_t store = 0;
  std::uint64_t begin = 0;  // of the array in the store, in bytes
  std::uint64_t size_bytes = 0;
  std::uint64_t first_page = 0;  // of the store's, the one with `begin`
  QueueSet* queues = nullptr;
  PageCacheState cache;
  alignas(128) std::uint64_t first_failure = 0;  // an IoResult, packed; 0: there was none
};

PENSTOCK_ANYWHERE constexpr std::uint64_t pack(IoResult result) {
  return std::uint64_t{result.field} << 32 | static_cast<std::uint32_t>(result.status);
}
PENSTOCK_ANYWHERE constexpr IoResult unpack(std::uint64_t packed) {
  return {static_cast<IoStatus>(packed & 0xffffffff), static_cast<std::uint32_t>(packed >> 32)};
}

// A stretch of an array, in bytes. REQUIRES: within it.
struct Stretch {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// What one group does with an array. Every function is entered by all lanes of the group together.
template <typename Platform>
class PagedArrayIo {
 public:
  PENSTOCK_ANYWHERE PagedArrayIo(PagedArray& array, Platform& platform)
      : a_(array), p_(platform), cache_(array.cache, platform), begin_(array.begin), first_page_(array.first_page) {}

  // Each lane a stretch of its own, within a page: calls use(bytes) in those whose bytes are there. Lanes of one page
  // take it once. A lane whose stretch is empty only helps. A timeout of 0 is the set's.
  template <typename Use>
  PENSTOCK_ANYWHERE IoResult visit_each(const Stretch& stretch, std::uint64_t timeout_ns, Use use) {
    const bool wants = stretch.bytes != 0;
    const std::uint64_t at = begin_ + stretch.offset;
    const std::uint32_t page = wants ? page_of(at) : Frame::nobody;
    const bool leads = p_.is_first(page) && wants;
    std::uint64_t deadline = 0;
    const TakenPage own = take(page, leads, timeout_ns, deadline);
    const auto* const bytes =
        reinterpret_cast<const unsigned char*>(p_.of_same(page, reinterpret_cast<std::uint64_t>(own.bytes)));
    if (bytes != nullptr) use(bytes + cache_.within_page(at));
    give_back(page, own);
    IoResult result;
    if (!p_.any(wants && bytes == nullptr)) return result;
    result = unpack(p_.of_same(page, pack(own.result)));
    const Extent past = wants && bytes == nullptr && result.ok() ? blocks_around(at, stretch.bytes) : Extent{};
    if (p_.any(past.bytes != 0)) {
      const Past visited = begin_past(p_, a_, past, deadline);
      if (visited.visit.is_done && visited.visit.result.ok()) use(visited.visit.place + (at - past.offset));
      end_past(p_, a_, visited);
      if (past.bytes != 0) result = visited.visit.result;
    }
    note_failure(result);
    return result;
  }

  // All lanes the same stretch: calls use(bytes, offset, length) for each page of it, in order, with the offset of
  // those bytes in the stretch, until one fails. The result is the same in all lanes.
  template <typename Use>
  PENSTOCK_ANYWHERE IoResult visit_together(const Stretch& stretch, std::uint64_t timeout_ns, Use use) {
    IoResult result;
    std::uint64_t deadline = 0;
    for (std::uint64_t done = 0; done < stretch.bytes && result.ok();) {
      const std::uint64_t at = begin_ + stretch.offset + done;
      const std::uint64_t left = stretch.bytes - done;
      const std::uint64_t to_end = cache_.page_bytes() - cache_.within_page(at);
      const auto length = static_cast<std::uint32_t>(left < to_end ? left : to_end);
      result = visit_page(at, timeout_ns, deadline, [&](const unsigned char* bytes) { use(bytes, done, length); });
      done += length;
    }
    note_failure(result);
    return result;
  }

 private:
  PENSTOCK_ANYWHERE std::uint32_t page_of(std::uint64_t at) const {
    return static_cast<std::uint32_t>(cache_.page_of(at) - first_page_);
  }
  // As far as the window of the store goes.
  PENSTOCK_ANYWHERE Extent clip(std::uint64_t begin, std::uint64_t end) const {
    const StoreWindow& window = a_.queues->stores[a_.store];
    begin = begin < window.begin ? window.begin : begin;
    end = end > window.end ? window.end : end;
    return {begin, end - begin, a_.store};
  }
  PENSTOCK_ANYWHERE Extent page_extent(std::uint32_t page) const {
    const std::uint64_t begin = (first_page_ + page) * cache_.page_bytes();
    return clip(begin, begin + cache_.page_bytes());
  }
  PENSTOCK_ANYWHERE Extent blocks_around(std::uint64_t at, std::uint64_t bytes) const {
    const std::uint64_t mask = a_.queues->stores[a_.store].block_bytes - 1;
    return clip(at & ~mask, (at + bytes + mask) & ~mask);
  }

  // A call's deadline is set when a page is missing for the first time: what is resident needs no clock.
  PENSTOCK_ANYWHERE TakenPage take(std::uint32_t page, bool wants, std::uint64_t timeout_ns, std::uint64_t& deadline) {
    TakenPage taken = cache_.take(page, wants);
    const bool is_missing = wants && taken.bytes == nullptr;
    if (p_.any(is_missing)) {
      if (deadline == 0) deadline = deadline_after(p_.now(), timeout_ns != 0 ? timeout_ns : a_.queues->timeout_ns);
      const TakenPage fetched = take_missing(p_, a_, page, is_missing, deadline);
      if (is_missing) taken = fetched;
    }
    p_.sync();  // what one lane has acquired, the others may read
    return taken;
  }
  PENSTOCK_ANYWHERE void give_back(std::uint32_t page, const TakenPage& taken) {
    p_.sync();
    cache_.give_back(page, taken.bytes != nullptr);
  }

  // What is rare is compiled apart, with a platform of its own: the caller's stays in registers. Lanes leave these
  // functions together: from lanes that came back one by one, nvcc 13 made code that mixed up their next votes.
  using Passed = typename Platform::Passed;
  PENSTOCK_APART static TakenPage take_missing(Passed platform, PagedArray& array, std::uint32_t page, bool is_missing,
                                               std::uint64_t deadline) {
    PagedArrayIo self(array, platform);
    QueueSetIo<Platform> io(*array.queues, platform, platform.queue_of(array.queues->queue_count));
    const auto fetch = [&](std::uint32_t number, unsigned char* to, bool wants) {
      const Extent extent = wants ? self.page_extent(number) : Extent{};
      return io.read(extent, wants ? to + self.cache_.within_page(extent.offset) : nullptr, deadline);
    };
    const TakenPage taken = self.cache_.take_missing(page, is_missing, deadline, fetch);
    platform.sync();
    return taken;
  }
  struct Past {
    Visit visit;
    std::uint32_t queue = 0;
  };
  PENSTOCK_APART static Past begin_past(Passed platform, PagedArray& array, const Extent& extent,
                                        std::uint64_t deadline) {
    const std::uint32_t queue = platform.queue_of(array.queues->queue_count);
    const Past past{QueueSetIo<Platform>(*array.queues, platform, queue).begin_visit(extent, deadline), queue};
    platform.sync();
    return past;
  }
  PENSTOCK_APART static void end_past(Passed platform, PagedArray& array, const Past& past) {
    QueueSetIo<Platform>(*array.queues, platform, past.queue).end_visit(past.visit);
    platform.sync();
  }

  template <typename Use>
  PENSTOCK_ANYWHERE IoResult visit_page(std::uint64_t at, std::uint64_t timeout_ns, std::uint64_t& deadline, Use use) {
    const std::uint32_t page = page_of(at);
    const TakenPage own = take(page, p_.is_leader(), timeout_ns, deadline);
    const auto* const bytes =
        reinterpret_cast<const unsigned char*>(p_.broadcast(reinterpret_cast<std::uint64_t>(own.bytes)));
    if (bytes != nullptr) {
      use(bytes + cache_.within_page(at));
      give_back(page, own);
      return {};
    }
    const IoResult result = unpack(p_.broadcast(pack(own.result)));
    if (!result.ok()) return result;
    const Extent past = page_extent(page);
    const Past visited = begin_past(p_, a_, p_.is_leader() ? past : Extent{}, deadline);
    const bool arrived = visited.visit.is_done && visited.visit.result.ok();
    const std::uint64_t place = p_.broadcast(arrived ? reinterpret_cast<std::uint64_t>(visited.visit.place) : 0);
    if (place != 0) use(reinterpret_cast<const unsigned char*>(place) + (at - past.offset));
    end_past(p_, a_, visited);
    return unpack(p_.broadcast(pack(visited.visit.result)));
  }

  PENSTOCK_ANYWHERE void note_failure(const IoResult& result) {
    std::uint64_t none = 0;
    if (!result.ok()) p_.compare_exchange(a_.first_failure, none, pack(result));
  }

  PagedArray& a_;
  Platform& p_;
  PageCache<Platform> cache_;
  const std::uint64_t begin_;
  const std::uint64_t first_page_;
};

}  // namespace penstock::device
