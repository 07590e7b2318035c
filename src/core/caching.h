// Caching: what of the files that are read and written stays in the page cache (Cache::automatic): what is likely to be
// read again.
//
// A file that fits stays. It fits if it and the other files that were kept lately take no more than the limit, and if
// what is missing of it fits in memory that is free or holds idle pages. Of other files, a block stays that is read a
// second time before the limit was read past the page cache: it would still be there. Where a disk is much faster past
// the page cache than through it, cold files are read, and files are written, past it.
//
// Thread safety: any thread. Lifetime: that of its Environment, but for what stores share with it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "core/page_memory.h"
#include "core/planner.h"
#include "core/statistics.h"
#include "engine/op.h"

namespace penstock::core {

// How fast a disk reads cold bytes, or writes, in long operations: through the page cache, and past it.
class DiskRates {
 public:
  // Chosen so that little is read the slower way: what is short is read through the page cache, and long reads try the
  // other way now and then.
  static constexpr std::uint64_t first_bytes = 256 << 20;
  static constexpr std::uint64_t try_bytes = 64 << 20;
  static constexpr std::uint64_t believed_bytes = std::uint64_t{16} << 30;
  // Shorter operations wait for the disk either way.
  static constexpr std::uint64_t noted_from_bytes = 256 << 10;

  // For the next bytes of a file that should stay in the page cache.
  Stays next(std::uint64_t bytes);
  // A sync of what was written has no bytes, and counts as time of its path.
  void note(engine::Path path, std::uint64_t bytes, Duration latency, TimePoint now);

 private:
  struct Way {
    std::atomic<std::uint64_t> bytes{0};
    BandwidthMeter meter;

    double rate() const;
  };
  bool is_faster_past() const;

  std::atomic<std::uint64_t> planned_{0};
  std::atomic<std::uint64_t> tried_{0};  // try_bytes at the most each time that rates are believed
  Way through_;
  Way past_;
};

// What an open file has of this.
class CachedFile {
 public:
  std::uint64_t number = 0;  // of the file, whatever it contains; 0: it has no page cache, or is always in memory
  std::string local_path;    // empty: unknown, or a server would have to be asked about it
  std::array<std::shared_ptr<DiskRates>, 2> rates;  // by direction; shared by the files of a disk
  std::atomic<Duration::rep> believed_until{0};     // since the epoch of the clock; what follows
  std::atomic<bool> fits{false};

  DiskRates& rates_of(Direction direction) const { return *rates[static_cast<std::size_t>(direction)]; }
  // A long operation has moved bytes.
  void note(Direction direction, engine::Path path, std::uint64_t bytes, Duration latency, TimePoint now);
  // What was written has been synced.
  void note_sync(Duration latency, TimePoint now);

 private:
  // By way: bytes that long operations have written since the last sync.
  std::atomic<std::uint64_t> through_{0};
  std::atomic<std::uint64_t> past_{0};
};

class Caching {
 public:
  // `limit_bytes`: 0: half of the memory that is available.
  explicit Caching(std::uint64_t limit_bytes, std::function<PageMemory()> ask = PageMemoryReader());

  std::shared_ptr<DiskRates> rates_of(const std::string& device, Direction direction);
  // Whether all of it stays. `resident_bytes`: what of it is in the page cache, if it has to be known.
  bool fits(CachedFile& file, std::uint64_t size_bytes, TimePoint now,
            const std::function<std::uint64_t()>& resident_bytes) {
    const Duration::rep at = now.time_since_epoch().count();
    if (at < file.believed_until.load(std::memory_order_acquire)) return file.fits.load(std::memory_order_relaxed);
    return look_again(file, size_bytes, now, resident_bytes);
  }
  // A range of a file that does not fit was read past the page cache.
  void note(const CachedFile& file, std::uint64_t offset, std::uint64_t length);
  // Whether all of it was, not long ago.
  bool was_read(const CachedFile& file, std::uint64_t offset, std::uint64_t length) const;

 private:
  struct Kept {
    std::uint64_t size_bytes = 0;
    TimePoint last;
    std::string local_path;
  };
  static constexpr std::size_t slots = 1 << 18;
  static constexpr std::size_t files_most = 1 << 14;

  PageMemory memory(TimePoint now);
  bool look_again(CachedFile& file, std::uint64_t size_bytes, TimePoint now,
                  const std::function<std::uint64_t()>& resident_bytes);
  bool fits_now(const CachedFile& file, std::uint64_t size_bytes, TimePoint now,
                const std::function<std::uint64_t()>& resident_bytes);
  void forget_old(TimePoint now);
  void forget_gone(TimePoint now);
  template <typename Is>
  void forget_if(Is is);
  std::uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }

  const std::uint64_t limit_bytes_;
  const std::function<PageMemory()> ask_;
  std::atomic<std::uint64_t> limit_;          // as last known
  std::atomic<std::uint64_t> past_bytes_{0};  // read past the page cache, of files that do not fit
  // Of blocks, in any order: some bits of what a block is, above past_bytes_ when it was read. Null until the first.
  std::atomic<std::atomic<std::uint64_t>*> blocks_{nullptr};
  std::unique_ptr<std::atomic<std::uint64_t>[]> blocks_owned_;

  std::mutex mutex_;  // guards what follows
  PageMemory memory_;
  TimePoint asked_;
  std::map<std::uint64_t, Kept> kept_;  // by file
  std::uint64_t kept_bytes_ = 0;
  TimePoint looked_for_gone_;
  std::map<std::pair<std::string, Direction>, std::shared_ptr<DiskRates>> rates_;  // by device
};

}  // namespace penstock::core
