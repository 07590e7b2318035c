#include "core/caching.h"

#include <sys/stat.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/file_number.h"
#include "base/out_of_memory.h"

namespace penstock::core {

namespace {

constexpr Duration asked_again_after = std::chrono::milliseconds(100);
// A file that was not read for so long makes way for others.
constexpr Duration kept_for = std::chrono::minutes(10);
// Small control groups keep nothing: their dirty pages can't be written back as fast as they are made, and then the
// kernel kills the process.
constexpr std::uint64_t min_available_bytes = 40 << 20;

// To look for each file that was kept takes a system call.
constexpr Duration looked_for_again_after = std::chrono::seconds(1);

// What a first read through the page cache may cost, in terms of one past it. Each read of the file after that costs a
// third on two CPUs, and less on more, so a second read pays for it.
constexpr double max_cost = 2;

// The bits of an entry: what block it is, then when it was read, in MiB.
constexpr unsigned clock_bits = 24;
constexpr unsigned clock_shift = 20;
constexpr std::uint64_t clock_mask = (std::uint64_t{1} << clock_bits) - 1;

std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
  value = (value ^ value >> 27) * 0x94d049bb133111eb;
  return value ^ value >> 31;
}

// Long ranges have long blocks, so that a range is a few at most.
unsigned block_shift(std::uint64_t length) {
  if (length < 64 << 10) return 12;
  return length < 1 << 20 ? 16 : 20;
}

// Calls `visit(hash)` for each block, until it returns false.
template <typename Visit>
bool all_blocks(const CachedFile& file, std::uint64_t offset, std::uint64_t length, Visit visit) {
  const unsigned shift = block_shift(length);
  for (std::uint64_t block = offset >> shift; block <= (offset + length - 1) >> shift; ++block) {
    if (!visit(mixed(file.number + mixed(block << 6 | shift)))) return false;
  }
  return true;
}

}  // namespace

double DiskRates::Way::rate() const {
  const std::uint64_t busy_ns = meter.busy_ns();
  const auto all = static_cast<double>(bytes.load(std::memory_order_relaxed));
  return busy_ns == 0 ? 0 : all / static_cast<double>(busy_ns);
}

// Not before enough has come both ways.
bool DiskRates::is_faster_past() const {
  const bool is_known = past_.bytes.load(std::memory_order_relaxed) >= try_bytes / 2 &&
                        through_.bytes.load(std::memory_order_relaxed) >= try_bytes / 2;
  return is_known && past_.rate() > max_cost * through_.rate();
}

Stays DiskRates::next(std::uint64_t bytes) {
  const std::uint64_t at = planned_.fetch_add(bytes, std::memory_order_relaxed);
  if (at % believed_bytes < first_bytes) return Stays::file;
  // One try for each time that rates are believed: of many short operations, or of a single long one.
  const std::uint64_t try_end = (at / believed_bytes + 1) * try_bytes;
  std::uint64_t tried = tried_.load(std::memory_order_relaxed);
  while (tried < try_end) {
    const std::uint64_t fresh = std::max(tried, try_end - try_bytes) + std::min(bytes, try_bytes);
    if (tried_.compare_exchange_weak(tried, fresh, std::memory_order_relaxed)) return Stays::later;
  }
  return is_faster_past() ? Stays::too_slow : Stays::file;
}

void DiskRates::note(engine::Path path, std::uint64_t bytes, Duration latency, TimePoint now) {
  Way& way = path == engine::Path::direct ? past_ : through_;
  way.bytes.fetch_add(bytes, std::memory_order_relaxed);
  way.meter.add(bytes, static_cast<std::uint64_t>(std::chrono::nanoseconds(latency).count()), now);
}

void CachedFile::note(Direction direction, engine::Path path, std::uint64_t bytes, Duration latency, TimePoint now) {
  rates_of(direction).note(path, bytes, latency, now);
  if (direction == Direction::read) return;
  (path == engine::Path::direct ? past_ : through_).fetch_add(bytes, std::memory_order_relaxed);
}

void CachedFile::note_sync(Duration latency, TimePoint now) {
  const std::uint64_t past = past_.exchange(0, std::memory_order_relaxed);
  const std::uint64_t through = through_.exchange(0, std::memory_order_relaxed);
  if (past == 0 && through == 0) return;
  rates_of(Direction::write).note(past > through ? engine::Path::direct : engine::Path::buffered, 0, latency, now);
}

Caching::Caching(std::uint64_t limit_bytes, std::function<PageMemory()> ask)
    : limit_bytes_(limit_bytes), ask_(std::move(ask)), limit_(limit_bytes) {}

std::shared_ptr<DiskRates> Caching::rates_of(const std::string& device, Direction direction) {
  const std::lock_guard lock(mutex_);
  auto& known = rates_[{device, direction}];
  if (!known) known = std::make_shared<DiskRates>();
  return known;
}

bool Caching::look_again(CachedFile& file, std::uint64_t size_bytes, TimePoint now,
                         const std::function<std::uint64_t()>& resident_bytes) {
  bool fits = false;
  static_cast<void>(or_out_of_memory([&]() -> Status {
    fits = fits_now(file, size_bytes, now, resident_bytes);
    return {};
  }));
  file.fits.store(fits, std::memory_order_relaxed);
  file.believed_until.store((now + asked_again_after).time_since_epoch().count(), std::memory_order_release);
  return fits;
}

bool Caching::fits_now(const CachedFile& file, std::uint64_t size_bytes, TimePoint now,
                       const std::function<std::uint64_t()>& resident_bytes) {
  const std::lock_guard lock(mutex_);
  const PageMemory room = memory(now);
  const std::uint64_t half = room.available_bytes >= min_available_bytes ? room.available_bytes / 2 : 0;
  const std::uint64_t most = limit_bytes_ != 0 ? limit_bytes_ : half;
  limit_.store(most, std::memory_order_relaxed);
  const auto others = [&] {
    const auto own = kept_.find(file.number);
    return kept_bytes_ - (own != kept_.end() ? own->second.size_bytes : 0);
  };
  const auto is_too_much = [&] { return size_bytes > most || others() > most - size_bytes; };
  if (is_too_much() && size_bytes <= most) forget_old(now);
  if (is_too_much() && size_bytes <= most) forget_gone(now);
  if (is_too_much()) return false;
  // A limit that was chosen is taken at its word.
  const bool may_lack_room = limit_bytes_ == 0 && size_bytes > room.idle_bytes;
  if (may_lack_room && size_bytes - std::min(size_bytes, resident_bytes()) > room.idle_bytes) return false;
  if (kept_.size() >= files_most) {
    kept_.clear();
    kept_bytes_ = 0;
  }
  Kept& kept = kept_[file.number];
  kept_bytes_ += size_bytes - kept.size_bytes;
  kept = {size_bytes, now, file.local_path};
  return true;
}

PageMemory Caching::memory(TimePoint now) {
  if (limit_bytes_ != 0) return {};
  if (asked_ != TimePoint() && now - asked_ < asked_again_after) return memory_;
  memory_ = ask_();
  asked_ = now;
  return memory_;
}

template <typename Is>
void Caching::forget_if(Is is) {
  std::erase_if(kept_, [&](const auto& one) {
    if (!is(one.first, one.second)) return false;
    kept_bytes_ -= one.second.size_bytes;
    return true;
  });
}

void Caching::forget_old(TimePoint now) {
  forget_if([&](std::uint64_t, const Kept& kept) { return now - kept.last >= kept_for; });
}

// Files that were removed or replaced take no memory any more.
void Caching::forget_gone(TimePoint now) {
  if (looked_for_gone_ != TimePoint() && now - looked_for_gone_ < looked_for_again_after) return;
  looked_for_gone_ = now;
  forget_if([](std::uint64_t number, const Kept& kept) {
    struct stat status = {};
    if (kept.local_path.empty()) return false;
    return ::stat(kept.local_path.c_str(), &status) != 0 || file_number(status) != number;
  });
}

void Caching::note(const CachedFile& file, std::uint64_t offset, std::uint64_t length) {
  if (length == 0) return;
  auto* blocks = blocks_.load(std::memory_order_acquire);
  if (blocks == nullptr) {
    const std::lock_guard lock(mutex_);
    if (!blocks_owned_) blocks_owned_.reset(new (std::nothrow) std::atomic<std::uint64_t>[slots]());
    blocks = blocks_owned_.get();
    blocks_.store(blocks, std::memory_order_release);
    if (blocks == nullptr) return;
  }
  const std::uint64_t now = past_bytes_.fetch_add(length, std::memory_order_relaxed) >> clock_shift & clock_mask;
  all_blocks(file, offset, length, [&](std::uint64_t hash) {
    // Never 0, which is an empty entry.
    blocks[hash % slots].store((hash & ~clock_mask) | now, std::memory_order_relaxed);
    return true;
  });
}

bool Caching::was_read(const CachedFile& file, std::uint64_t offset, std::uint64_t length) const {
  const auto* blocks = blocks_.load(std::memory_order_acquire);
  if (blocks == nullptr || length == 0 || length > limit()) return false;
  const std::uint64_t now = past_bytes_.load(std::memory_order_relaxed) >> clock_shift;
  const std::uint64_t window = limit() >> clock_shift;
  return all_blocks(file, offset, length, [&](std::uint64_t hash) {
    const std::uint64_t entry = blocks[hash % slots].load(std::memory_order_relaxed);
    return entry >> clock_bits == hash >> clock_bits && ((now - entry) & clock_mask) <= window;
  });
}

}  // namespace penstock::core
