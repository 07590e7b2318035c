// Residency: which pages of a mapped table are in the page cache, as far as somebody looked.
//
// It looks at stretches of 2 MiB, and believes what it saw for a while. A stretch that is all there, or not at all, is
// told by one call (cachestat). One that is partly there is asked page by page (mincore). What is there is then mapped
// (MADV_POPULATE_READ), so that gathers take no faults and the next look is cheap; what is not is never read. A page
// that comes or goes meanwhile costs time, not bytes.
//
// Thread safety: any thread. Lifetime: the store and the mapping must outlive it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <shared_mutex>
#include <span>
#include <vector>

#include "penstock/store.h"

namespace penstock::rows {

class Residency {
 public:
  static constexpr std::uint64_t stretch_bytes = 2 << 20;
  using Time = std::chrono::steady_clock::time_point;

  struct Span {
    std::uint64_t offset = 0;  // in the store
    std::uint64_t length = 0;
  };
  struct Settings {
    double look_again_seconds = 1;
    std::size_t threads = 1;  // that map what is there, if it is much
  };
  // REQUIRES: the span lies in the mapping, which begins where the store does.
  Residency(const Store& store, std::span<const std::byte> mapping, Span table, Settings settings);

  std::size_t stretches() const { return looked_.size(); }
  std::size_t stretch_of(std::uint64_t offset) const { return (offset - begin_) / stretch_bytes; }

  using GoesOn = std::function<bool()>;
  // Looks at all stretches, or at those of the list, ascending, that nobody has looked at lately; as long as that is
  // wanted, which is asked now and then.
  void look(const GoesOn& goes_on = always);
  void look(std::span<const std::size_t> stretches, const GoesOn& goes_on = always);
  // The next gather looks again.
  void forget();
  // These bytes were just read through the page cache.
  void note_read(std::span<const Span> spans);

  // Whether all pages are there.
  bool is_whole() const { return resident_pages_.load(std::memory_order_relaxed) == pages_; }
  // For many questions at once: nobody changes what is known as long as it is held.
  std::shared_lock<std::shared_mutex> hold() const { return std::shared_lock(mutex_); }
  // REQUIRES: hold, length > 0, and that the bytes are the table's.
  bool has(std::uint64_t offset, std::uint64_t length) const {
    const std::uint64_t last = (offset + length - 1 - begin_) / page_bytes_;
    for (std::uint64_t page = (offset - begin_) / page_bytes_; page <= last; ++page) {
      if ((bits_[page / 64] >> page % 64 & 1) == 0) return false;
    }
    return true;
  }

  // What was looked at before that time is due again.
  Time due_before(Time now) const {
    constexpr double longest_seconds = 1e9;
    const std::chrono::duration<double> believed(
        std::min(believe_seconds_.load(std::memory_order_relaxed), longest_seconds));
    return now - std::chrono::duration_cast<Time::duration>(believed);
  }
  // REQUIRES: hold.
  bool is_due(std::size_t stretch, Time due_before) const { return looked_[stretch] <= due_before; }

 private:
  static bool always() { return true; }
  // REQUIRES: mutex_. What to map afterwards is added to the list.
  void look_at(std::size_t stretch, std::vector<Span>& to_map);
  void set(std::uint64_t page, bool resident);
  void set_stretch(std::size_t stretch, bool resident);
  void look_at_due(std::span<const std::size_t> stretches, bool all, const GoesOn& goes_on);
  void map(std::span<const Span> spans, const GoesOn& goes_on) const;
  Span span_of(std::size_t stretch) const;

  const Store& store_;
  const std::span<const std::byte> mapping_;
  const Settings settings_;
  const std::uint64_t page_bytes_;
  const std::uint64_t begin_;  // of the first page
  const std::uint64_t end_;    // past the last byte
  const std::uint64_t pages_;

  mutable std::shared_mutex mutex_;
  std::vector<std::uint64_t> bits_;  // a bit a page
  std::atomic<std::uint64_t> resident_pages_ = 0;
  std::vector<Time> looked_;  // by stretch
  std::vector<bool> mapped_;  // by stretch: whether what was there has been mapped
  std::atomic<Time::duration::rep> whole_look_ = Time::min().time_since_epoch().count();
  std::atomic<double> believe_seconds_;
};

}  // namespace penstock::rows
