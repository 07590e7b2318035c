#include "services/gpu_queues/worker.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <span>
#include <utility>

#include "services/rows/guard.h"

namespace penstock::gpu_queues {
namespace {

// Transfers whose bytes are on their way from memory while others are copied, and how much of each: beyond that the
// processor sees by itself where it goes.
constexpr std::size_t transfers_ahead = 8;
constexpr std::size_t bytes_ahead = 1024;
constexpr std::size_t line_size_bytes = 64;

struct Copies {
  Transfer* first;
  std::size_t count;
};

inline void copy_one(const Transfer& transfer) {
  std::byte* const data = transfer.source->data(transfer.offset);
  if (transfer.writes) {
    std::memcpy(data, transfer.place, transfer.bytes);
  } else {
    std::memcpy(transfer.place, data, transfer.bytes);
  }
}

void copy_all(void* argument) {
  const Copies copies = *static_cast<const Copies*>(argument);
  // Inlined early: GCC takes a function that only prefetches for one without effect, and drops its calls.
  const auto prefetch = [&](std::size_t i) __attribute__((always_inline)) {
    if (i >= copies.count) return;
    const std::byte* const from = copies.first[i].source->data(copies.first[i].offset);
    for (std::size_t at = 0; at < std::min<std::size_t>(copies.first[i].bytes, bytes_ahead); at += line_size_bytes) {
      __builtin_prefetch(from + at);
    }
  };
  for (std::size_t i = 0; i < transfers_ahead; ++i) prefetch(i);
  for (std::size_t i = 0; i < copies.count; ++i) {
    prefetch(i + transfers_ahead);
    copy_one(copies.first[i]);
  }
}

}  // namespace

bool Worker::serve(const std::shared_ptr<Set>& set) {
  bool found = false;
  const auto count = static_cast<std::uint32_t>(set->queues().size());
  for (std::uint32_t i = place_.thread; i < count && !is_over_; i += place_.threads) found |= serve(set, i);
  return found;
}

bool Worker::serve(const std::shared_ptr<Set>& set, std::uint32_t number) {
  Set::Queue& queue = set->queues()[number];
  const std::uint32_t fetched = queue.served.fetch(words_, commands_);
  if (fetched == 0) return false;
  transfers_.clear();
  for (std::uint32_t i = 0; i < fetched; ++i) {
    if (!take(*set, queue, commands_[i])) return true;
  }
  find_at_hand();
  const auto others = std::partition(transfers_.begin(), transfers_.end(), std::mem_fn(&Transfer::at_hand));
  const auto at_hand = static_cast<std::size_t>(others - transfers_.begin());
  copy_at_hand(*set, queue, std::span(transfers_).first(at_hand));
  begin_batches(set, number, std::span(transfers_).subspan(at_hand));
  for (const Transfer& transfer : std::span(transfers_).first(at_hand)) {
    if (!is_spoilt(transfer.cid, Fault::twice)) continue;
    queue.served.post(words_, transfer.cid, nvme::status::success, queue.served.head(), true);
  }
  spoilt_.clear();
  return true;
}

void Worker::begin_batches(const std::shared_ptr<Set>& set, std::uint32_t number, std::span<Transfer> left) {
  while (!left.empty()) {
    const std::size_t together = Batch::choose(left);
    Counters::add(set->counters(place_.thread).requests, 1);
    try {
      batches_.push_back(std::make_unique<Batch>(context_, set, number, left.first(together)));
    } catch (const std::bad_alloc&) {
      for (Transfer& transfer : left.first(together)) {
        transfer.ok = false;
        set->queues()[number].served.complete(words_, transfer.cid, nvme::status::internal_error);
      }
      count(*set, left.first(together), false);
    }
    left = left.subspan(together);
  }
}

// Adds a command to the list, or ends it with what is wrong with it. False: the thread shall end.
bool Worker::take(Set& set, Set::Queue& queue, const nvme::Command& command) {
  if (faults_ && spoil(queue, command)) return !is_over_;
  const Set::Checked checked = set.check(command);
  if (checked.refusal.ok()) {
    transfers_.push_back(checked.transfer);
    return true;
  }
  Counters::add(set.counters(place_.thread).refused, 1);
  Counters::add(set.counters(place_.thread).failed, 1);
  queue.served.complete(words_, command.cid, checked.refusal);
  return true;
}

void Worker::find_at_hand() {
  // Most commands of a queue are for few stores.
  for (std::size_t i = 0; i < transfers_.size(); ++i) {
    const Source* const source = transfers_[i].source;
    const auto same = [&](const Transfer& before) { return before.source == source; };
    const std::span all(transfers_);
    if (std::ranges::none_of(all.first(i), same)) source->find_at_hand(all.subspan(i), due_);
  }
}

void Worker::copy_at_hand(Set& set, Set::Queue& queue, std::span<Transfer> transfers) {
  if (transfers.empty()) return;
  Copies copies{transfers.data(), transfers.size()};
  if (set.mappings().empty()) {
    copy_all(&copies);
  } else if (!rows::run_guarded(set.mappings(), copy_all, &copies)) {
    // A file was truncated: which one is found out one by one.
    for (Transfer& transfer : transfers) {
      Copies one{&transfer, 1};
      transfer.ok = rows::run_guarded(set.mappings(), copy_all, &one);
      if (transfer.ok) continue;
      set.note_error({Code::truncated, 0, transfer.source->store().info().name + " was truncated, or can't be read",
                      "open it again"});
    }
  }
  count(set, transfers, true);
  if (!spoilt_.empty()) {
    std::stable_partition(transfers.begin(), transfers.end(),
                          [&](const Transfer& one) { return !is_spoilt(one.cid, Fault::late); });
  }
  for (const Transfer& transfer : transfers) complete(queue, transfer);
}

void Worker::complete(Set::Queue& queue, const Transfer& transfer) {
  const nvme::StatusField field = transfer.ok ? nvme::status::success : nvme::status::unrecovered_read;
  if (!spoilt_.empty() && is_spoilt(transfer.cid, Fault::old_head)) {
    queue.served.complete(words_, transfer.cid, field, transfer.cid + 1U);
  } else {
    queue.served.complete(words_, transfer.cid, field);
  }
}

bool Worker::is_spoilt(std::uint16_t cid, Fault fault) const {
  return std::ranges::any_of(spoilt_, [&](const Spoilt& one) { return one.cid == cid && one.fault == fault; });
}

void Worker::count(Set& set, std::span<const Transfer> transfers, bool at_hand) {
  std::uint64_t reads = 0, writes = 0, read_bytes = 0, written_bytes = 0, failed = 0;
  for (const Transfer& transfer : transfers) {
    const bool reads_it = transfer.ok && !transfer.writes;
    const bool writes_it = transfer.ok && transfer.writes;
    reads += reads_it ? 1 : 0;
    read_bytes += reads_it ? transfer.bytes : 0;
    writes += writes_it ? 1 : 0;
    written_bytes += writes_it ? transfer.bytes : 0;
    failed += transfer.ok ? 0 : 1;
  }
  Counters& counters = set.counters(place_.thread);
  Counters::add(counters.reads, reads);
  Counters::add(counters.writes, writes);
  Counters::add(counters.read_bytes, read_bytes);
  Counters::add(counters.written_bytes, written_bytes);
  Counters::add(counters.failed, failed);
  if (at_hand) Counters::add(counters.mapped_bytes, read_bytes);
}

bool Worker::collect() {
  const auto ended =
      std::partition(batches_.begin(), batches_.end(), [](const auto& batch) { return !batch->ended(); });
  if (ended == batches_.end()) return false;
  for (const auto& batch : std::span(ended, batches_.end())) {
    Set& set = batch->set();
    const std::span<const Transfer> transfers = batch->finish();
    count(set, transfers, false);
    for (const Transfer& transfer : transfers) {
      set.queues()[batch->queue()].served.complete(words_, transfer.cid,
                                                   transfer.ok ? nvme::status::success : batch->failure());
    }
  }
  batches_.erase(ended, batches_.end());
  return true;
}

bool Worker::has_batches_of(const Set& set) const {
  return std::ranges::any_of(batches_, [&](const auto& batch) { return &batch->set() == &set; });
}

// Whether the command was dealt with. Lies are told before the command is served, or after: nothing may come of them
// but a count. (Nobody can tell a lie about a command that is in flight from the truth.)
bool Worker::spoil(Set::Queue& queue, const nvme::Command& command) {
  constexpr std::uint16_t other_generation = 0x4000;
  constexpr std::uint32_t no_head = 0xffff;
  switch (faults_(command)) {
    case Fault::none:
      return false;
    case Fault::lose:
      return true;
    case Fault::fail:
      queue.served.complete(words_, command.cid, nvme::status::unrecovered_read);
      return true;
    case Fault::late:
      spoilt_.push_back({command.cid, Fault::late});
      return false;
    case Fault::old_head:
      spoilt_.push_back({command.cid, Fault::old_head});
      return false;
    case Fault::twice:
      spoilt_.push_back({command.cid, Fault::twice});
      return false;
    case Fault::unfetched:
      queue.served.post(words_, queue.served.next_cid(), nvme::status::unrecovered_read, queue.served.head(), true);
      return false;
    case Fault::other_command:
      queue.served.post(words_, command.cid ^ other_generation, nvme::status::success, command.cid, true);
      return false;
    case Fault::other_head:
      queue.served.post(words_, command.cid, nvme::status::success, no_head, true);
      return false;
    case Fault::other_phase:
      queue.served.post(words_, command.cid, nvme::status::success, queue.served.head(), false);
      return false;
    case Fault::end_thread:
      is_over_ = true;
      return true;
  }
  return false;
}

}  // namespace penstock::gpu_queues
