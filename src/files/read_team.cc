#include "files/read_team.h"

#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <exception>

#include "base/futex.h"
#include "base/spin.h"
#include "files/transfer.h"

namespace penstock::files {
namespace {

using engine::Done;
using engine::Op;

// Long enough that to take one costs little, and short enough that all threads end together.
constexpr std::uint64_t stretch_bytes_min = 32 << 10;
constexpr std::uint64_t stretches_wanted = 32;

// How long helpers, and an owner that waits for them, look before they sleep.
constexpr Duration spin_time = std::chrono::microseconds(50);

constexpr std::uint32_t woken_at_once = 2;

// In the count of a slot's helpers.
constexpr std::uint32_t owner_sleeps = 1U << 31;

// What is not in the page cache is not read, unless the file system can't tell.
Done read_cached(const Op& op) {
  if (op.store->info().locality != Locality::local) return transfer(op);
  const iovec memory{op.memory, op.length};
  const ssize_t got = ::preadv2(descriptor_of(op), &memory, 1, static_cast<off_t>(op.offset), RWF_NOWAIT);
  if (got < 0 && errno == EOPNOTSUPP) return transfer(op);
  return finish(op, got < 0 ? -errno : got);
}

}  // namespace

TeamRead::TeamRead(const Op& op)
    : op_(op),
      stretch_bytes_(std::bit_ceil(std::max(stretch_bytes_min, op.length / stretches_wanted))),
      first_(reinterpret_cast<std::uintptr_t>(op.memory) / stretch_bytes_),
      count_(static_cast<std::uint32_t>(
          (reinterpret_cast<std::uintptr_t>(op.memory) + std::max<std::uint64_t>(1, op.length) - 1) / stretch_bytes_ -
          first_ + 1)),
      all_(~std::uint64_t{0} >> (64 - count_)),
      end_(op.length) {}

bool TeamRead::work(std::uint32_t worker, std::uint32_t workers) {
  const auto offset = static_cast<std::uint32_t>(first_ % workers);
  for (std::uint32_t i = (worker + workers - offset) % workers; i < count_; i += workers) {
    if (!take(i)) continue;
    read(i);
    return true;
  }
  for (std::uint64_t left = all_ & ~taken_.load(std::memory_order_relaxed); left != 0;
       left = all_ & ~taken_.load(std::memory_order_relaxed)) {
    // From another one on than others that are done with theirs.
    const std::uint32_t begin = worker * count_ / workers;
    const std::uint64_t later = left >> begin << begin;
    const auto i = static_cast<std::uint32_t>(std::countr_zero(later != 0 ? later : left));
    if (!take(i)) continue;
    read(i);
    return true;
  }
  return false;
}

bool TeamRead::take(std::uint32_t stretch) {
  const std::uint64_t bit = std::uint64_t{1} << stretch;
  return (taken_.load(std::memory_order_relaxed) & bit) == 0 &&
         (taken_.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

void TeamRead::read(std::uint32_t stretch) {
  const std::uint64_t base = reinterpret_cast<std::uintptr_t>(op_.memory);
  const std::uint64_t begin = std::max(base, (first_ + stretch) * stretch_bytes_) - base;
  const std::uint64_t stretch_end = std::min(op_.length, (first_ + stretch + 1) * stretch_bytes_ - base);
  Op part = op_;
  part.offset += begin;
  part.memory += begin;
  part.length = stretch_end - begin;
  const Done done = read_cached(part);
  if (done.code != Code::ok || done.bytes < part.length) end_at(begin + done.bytes, done, all_ << stretch);
  read_.fetch_add(1, std::memory_order_release);
}

void TeamRead::end_at(std::uint64_t gap, const Done& why, std::uint64_t unwanted) {
  const std::uint64_t left = all_ & unwanted & ~taken_.fetch_or(all_ & unwanted, std::memory_order_relaxed);
  {
    const std::scoped_lock lock(mutex_);
    if (gap < end_) {
      end_ = gap;
      ended_by_ = why;
    }
  }
  read_.fetch_add(static_cast<std::uint32_t>(std::popcount(left)), std::memory_order_release);
}

void TeamRead::cancel() {
  if (has_more()) end_at(0, finish(op_, -ECANCELED), all_);
}

// What follows a gap counts as not read.
Done TeamRead::done() const {
  Done done = end_ != 0 || op_.length == 0 ? finish(op_, static_cast<std::int64_t>(end_)) : ended_by_;
  done.cookie = op_.cookie;
  return done;
}

ReadTeam::~ReadTeam() {
  stopping_ = true;
  word_.fetch_add(1);
  futex_wake_all(word_);
  for (std::thread& thread : threads_) thread.join();
}

ReadTeam::Slot* ReadTeam::begin(TeamRead& read) {
  if (read.stretches() == 1) return nullptr;
  start_helpers(read.stretches() - 1);
  for (Slot& slot : slots_) {
    if (slot.is_taken.load(std::memory_order_relaxed) || slot.is_taken.exchange(true)) continue;
    slot.read.store(&read, std::memory_order_seq_cst);
    word_.fetch_add(1, std::memory_order_seq_cst);
    wake_helpers();
    return &slot;
  }
  return nullptr;
}

// Helpers that are late look for something else within a moment.
void ReadTeam::end(Slot& slot) {
  slot.read.store(nullptr, std::memory_order_seq_cst);
  const TimePoint spin_end = Clock::now() + spin_time;
  while (slot.helpers.load(std::memory_order_seq_cst) != 0 && Clock::now() < spin_end) relax_processor();
  if (slot.helpers.load(std::memory_order_seq_cst) != 0) {
    std::uint32_t helpers = slot.helpers.fetch_or(owner_sleeps, std::memory_order_seq_cst) | owner_sleeps;
    for (; helpers != owner_sleeps; helpers = slot.helpers.load(std::memory_order_seq_cst)) {
      futex_wait_until(slot.helpers, helpers, TimePoint::max());
    }
    slot.helpers.fetch_and(~owner_sleeps, std::memory_order_seq_cst);
  }
  slot.is_taken.store(false, std::memory_order_release);
}

// Where no thread can be started, those that run do the work.
void ReadTeam::start_helpers(std::uint32_t wanted) {
  const std::size_t limit = std::min(wanted, helpers_max_);
  if (started_.load(std::memory_order_relaxed) >= limit) return;
  const std::scoped_lock lock(mutex_);
  try {
    while (threads_.size() < limit) {
      threads_.emplace_back([this, worker = static_cast<std::uint32_t>(threads_.size()) + 1] { help(worker); });
    }
  } catch (const std::exception&) {  // no thread, or no memory for it
  }
  started_.store(threads_.size(), std::memory_order_relaxed);
}

void ReadTeam::wake_helpers() {
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(word_, woken_at_once);
}

bool ReadTeam::help_with(Slot& slot, std::uint32_t worker) {
  if (slot.read.load(std::memory_order_relaxed) == nullptr) return false;
  slot.helpers.fetch_add(1, std::memory_order_seq_cst);
  TeamRead* const read = slot.read.load(std::memory_order_seq_cst);
  const bool helps = read != nullptr && read->has_more();
  if (helps) {
    wake_helpers();
    while (read->work(worker, helpers_max_ + 1)) {
    }
  }
  if (slot.helpers.fetch_sub(1, std::memory_order_seq_cst) == (owner_sleeps | 1)) futex_wake_all(slot.helpers);
  return helps;
}

void ReadTeam::help(std::uint32_t worker) {
  while (!stopping_) {
    const std::uint32_t seen = word_.load(std::memory_order_seq_cst);
    bool has_helped = false;
    for (Slot& slot : slots_) has_helped |= help_with(slot, worker);
    if (has_helped) continue;
    const TimePoint spin_end = Clock::now() + spin_time;
    while (word_.load(std::memory_order_relaxed) == seen && Clock::now() < spin_end) relax_processor();
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (word_.load(std::memory_order_seq_cst) == seen && !stopping_) futex_wait_until(word_, seen, TimePoint::max());
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace penstock::files
