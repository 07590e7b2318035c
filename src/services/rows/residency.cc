#include "services/rows/residency.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>

namespace penstock::rows {
namespace {

constexpr int populate_read = 22;  // MADV_POPULATE_READ of Linux 5.14; older headers don't name it
constexpr std::uint64_t turn_bytes = 16 << 20;
constexpr std::uint64_t bytes_for_threads = 64 << 20;
constexpr std::size_t stretches_at_once = 32;  // a millisecond at most
// Looking takes no more of the time than one part in so many.
constexpr double looking_share = 20;

using Clock = std::chrono::steady_clock;

std::uint64_t system_page_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Residency::Residency(const Store& store, std::span<const std::byte> mapping, Span table, Settings settings)
    : store_(store),
      mapping_(mapping),
      settings_(settings),
      page_bytes_(system_page_bytes()),
      begin_(table.offset / page_bytes_ * page_bytes_),
      end_(table.offset + table.length),
      pages_((end_ - begin_ + page_bytes_ - 1) / page_bytes_),
      bits_((pages_ + 63) / 64),
      looked_((end_ - begin_ + stretch_bytes - 1) / stretch_bytes, Time::min()),
      mapped_(looked_.size()),
      believe_seconds_(settings.look_again_seconds) {}

Residency::Span Residency::span_of(std::size_t stretch) const {
  const std::uint64_t offset = begin_ + stretch * stretch_bytes;
  return {offset, std::min(stretch_bytes, end_ - offset)};
}

void Residency::set(std::uint64_t page, bool resident) {
  std::uint64_t& word = bits_[page / 64];
  const std::uint64_t bit = std::uint64_t{1} << page % 64;
  if (((word & bit) != 0) == resident) return;
  word ^= bit;
  const std::uint64_t before = resident_pages_.load(std::memory_order_relaxed);
  resident_pages_.store(resident ? before + 1 : before - 1, std::memory_order_relaxed);
}

void Residency::set_stretch(std::size_t stretch, bool resident) {
  const Span span = span_of(stretch);
  const std::uint64_t first = (span.offset - begin_) / page_bytes_;
  const std::uint64_t last = (span.offset + span.length - 1 - begin_) / page_bytes_;
  for (std::uint64_t page = first; page <= last; ++page) set(page, resident);
}

void Residency::look_at(std::size_t stretch, std::vector<Span>& to_map) {
  const Span span = span_of(stretch);
  bool partly = true;
  if (!mapped_[stretch]) {
    const auto cached = store_.cached_bytes(span.offset, span.length);
    // On a file system that is memory, holes count as cached; to map them would fill them.
    const bool knows_holes = store_.info().locality != Locality::memory;
    partly = cached && *cached != 0 && (*cached != span.length || !knows_holes);
    if (!partly) {
      const bool resident = cached && *cached != 0;
      set_stretch(stretch, resident);
      mapped_[stretch] = resident;
      if (resident) to_map.push_back(span);
      return;
    }
  }
  std::array<unsigned char, stretch_bytes / 4096> answers{};
  const std::uint64_t pages = (span.length + page_bytes_ - 1) / page_bytes_;
  // The kernel takes a pointer that it could write through, and does not.
  auto* const data = const_cast<std::byte*>(mapping_.data()) + span.offset;
  const bool known = ::mincore(data, span.length, answers.data()) == 0;
  const auto there = static_cast<std::uint64_t>(std::count_if(
      answers.begin(), answers.begin() + static_cast<std::ptrdiff_t>(pages), [](auto answer) { return answer & 1; }));
  // Of files of others the kernel says that all of it is there. It was asked because that is not so.
  const bool lies = !mapped_[stretch] && there == pages && store_.info().locality != Locality::memory;
  if (!known || lies) return set_stretch(stretch, false);
  const std::uint64_t first = (span.offset - begin_) / page_bytes_;
  for (std::uint64_t i = 0; i < pages; ++i) {
    const bool resident = (answers[i] & 1) != 0;
    set(first + i, resident);
    if (!resident || mapped_[stretch]) continue;
    const std::uint64_t offset = span.offset + i * page_bytes_;
    if (!to_map.empty() && to_map.back().offset + to_map.back().length == offset) {
      to_map.back().length += page_bytes_;
    } else {
      to_map.push_back({offset, page_bytes_});
    }
  }
  mapped_[stretch] = there != 0;
}

void Residency::look_at_due(std::span<const std::size_t> stretches, bool all, const GoesOn& goes_on) {
  const Time begin = Clock::now();
  const std::size_t count = all ? looked_.size() : stretches.size();
  const auto nth = [&](std::size_t i) { return all ? i : stretches[i]; };
  const Time due = due_before(begin);
  {
    const auto held = hold();
    std::size_t i = 0;
    while (i < count && !is_due(nth(i), due)) ++i;
    if (i == count) return;
  }
  std::vector<Span> to_map;
  bool is_wanted = true;
  for (std::size_t first = 0; first < count; first += stretches_at_once) {
    is_wanted = goes_on();  // without the lock: who is asked may gather
    if (!is_wanted) break;
    const std::lock_guard lock(mutex_);
    for (std::size_t i = first; i < std::min(count, first + stretches_at_once); ++i) {
      const std::size_t stretch = nth(i);
      if (!is_due(stretch, due)) continue;
      look_at(stretch, to_map);
      looked_[stretch] = begin;
    }
  }
  const std::chrono::duration<double> took = Clock::now() - begin;
  believe_seconds_.store(std::max(settings_.look_again_seconds, looking_share * took.count()),
                         std::memory_order_relaxed);
  map(to_map, goes_on);
  if (all && is_wanted) whole_look_.store(begin.time_since_epoch().count(), std::memory_order_relaxed);
}

void Residency::look(const GoesOn& goes_on) {
  const Time last{Time::duration(whole_look_.load(std::memory_order_relaxed))};
  if (last != Time::min() &&
      Clock::now() - last < std::chrono::duration<double>(believe_seconds_.load(std::memory_order_relaxed))) {
    return;
  }
  look_at_due({}, true, goes_on);
}

void Residency::look(std::span<const std::size_t> stretches, const GoesOn& goes_on) {
  look_at_due(stretches, false, goes_on);
}

void Residency::forget() {
  const std::lock_guard lock(mutex_);
  std::ranges::fill(looked_, Time::min());
  whole_look_.store(Time::min().time_since_epoch().count(), std::memory_order_relaxed);
}

void Residency::note_read(std::span<const Span> spans) {
  const std::lock_guard lock(mutex_);
  for (const Span& span : spans) {
    const std::uint64_t last = (std::min(span.offset + span.length, end_) - 1 - begin_) / page_bytes_;
    for (std::uint64_t page = (std::max(span.offset, begin_) - begin_) / page_bytes_; page <= last; ++page) {
      set(page, true);
    }
  }
}

void Residency::map(std::span<const Span> spans, const GoesOn& goes_on) const {
  std::vector<Span> turns;
  std::uint64_t bytes = 0;
  for (const Span& span : spans) {
    bytes += span.length;
    if (!turns.empty() && turns.back().offset + turns.back().length == span.offset &&
        turns.back().length + span.length <= turn_bytes) {
      turns.back().length += span.length;
    } else {
      turns.push_back(span);
    }
  }
  std::atomic<std::size_t> taken = 0;
  // Only the caller's thread asks. What is left then is mapped by whoever touches it.
  const auto work = [&](const GoesOn& is_wanted) {
    for (std::size_t i = taken++; i < turns.size(); i = taken++) {
      if (!is_wanted()) taken = turns.size();
      const std::uint64_t length = (turns[i].length + page_bytes_ - 1) / page_bytes_ * page_bytes_;
      // Where it fails, whoever touches the pages first has that much more to do.
      ::madvise(const_cast<std::byte*>(mapping_.data()) + turns[i].offset, length, populate_read);
    }
  };
  std::vector<std::thread> threads;
  if (bytes > bytes_for_threads) {
    try {
      while (threads.size() + 1 < std::min(settings_.threads, turns.size())) threads.emplace_back(work, always);
    } catch (const std::exception&) {  // no thread, or no memory for it
      // Fewer have to do.
    }
  }
  work(goes_on);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace penstock::rows
