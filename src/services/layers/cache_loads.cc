// The cache's loads: which group gets which slot, and when.
#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "base/out_of_memory.h"
#include "services/layers/cache.h"
#include "services/models/contents.h"
#include "services/models/range_list.h"

namespace penstock::layers {
namespace {

constexpr std::size_t loads_at_least = 2;  // so that one is under way when another ends
constexpr auto idle = std::chrono::seconds(1);

}  // namespace

// Work that failed will not touch the memory any longer, and loads into it tell the error themselves.
bool Cache::has_passed(Slot& slot) {
  std::erase_if(slot.released, [](const Released& each) {
    const Result<bool> reached = each.mark.reached();
    return !reached || *reached;
  });
  return slot.released.empty();
}

Cache::Room Cache::take_slot(std::uint32_t number, const Wish& wish) {
  Group& group = groups_[number];
  Class& slots = classes_[group.slot_class];
  candidates_.clear();
  for (std::uint32_t i = 0; i < slots.slots; ++i) {
    Slot& slot = slots_[slots.first_slot + i];
    if (slot.is_lost || slot.group == none) {
      Candidate candidate{.is_empty = true, .is_fixed = slot.is_lost};
      if (!slot.is_lost && !has_passed(slot)) {  // after a load that failed
        candidate = {.is_in_use = true, .distance = std::numeric_limits<double>::infinity()};
      }
      candidates_.push_back(candidate);
      continue;
    }
    const Group& there = groups_[slot.group];
    Candidate candidate{.is_fixed = there.state != State::loaded || there.report.held != 0 || there.waiting != 0 ||
                                    there.report.is_pinned};
    if (!candidate.is_fixed) {
      candidate.is_in_use = !has_passed(slot);
      candidate.stays = is_expected(uses_[slot.group], now_) && stays(slots.turns, there.rank);
      candidate.distance = distance_of(slot.group);
    }
    candidates_.push_back(candidate);
  }
  const auto chosen = decide(candidates_, wish);
  if (!chosen) return Room::none;
  const auto index = static_cast<std::uint32_t>(slots.first_slot + *chosen);
  Slot& slot = slots_[index];
  if (candidates_[*chosen].is_in_use) return Room::later;
  if (slot.group != none) vacate(groups_[slot.group]);
  slot.group = number;
  group.slot = index;
  group.state = State::loading;
  group.ticket = Ticket();
  for (std::size_t i = 0; i < group.tensors.size(); ++i) {
    const Layout::Tensor& tensor = group.layout.tensors[i];
    group.tensors[i] = memory_.part(slot.offset + tensor.place, tensor.bytes);
  }
  --absent_;
  loading_.push_back(number);
  loading_bytes_ += group.layout.wanted_bytes;
  return Room::found;
}

void Cache::vacate(Group& group) {
  slots_[group.slot].group = none;
  group.slot = none;
  group.state = State::absent;
  ++absent_;
}

Result<Ticket> Cache::submit(const Group& group, const Region& memory) {
  return or_out_of_memory([&]() -> Result<Ticket> {
    std::deque<Store> stores;  // their addresses stay; the request keeps them open
    models::RangeList list(context_);
    list.reserve(group.layout.pieces.size());
    {
      const std::scoped_lock lock(stores_mutex_);
      for (std::size_t i = 0; i < group.layout.pieces.size(); ++i) {
        models::FilePiece piece = group.layout.pieces[i].bytes;
        if (i == 0 || group.layout.pieces[i - 1].bytes.file != piece.file) {
          Result<Store> store = stores_.open_if_unchanged(piece.file);
          if (!store) return std::move(store).error();
          stores.push_back(std::move(*store));
        }
        piece.memory = memory.part(group.layout.pieces[i].place, piece.memory.size_bytes);
        list.add(stores.back(), piece);
      }
    }
    RequestOptions options;
    options.as_opened = true;
    options.cache = options_.cache;
    options.on_end = [bell = bell_](const Report&) { bell->ring(); };
    return context_.submit(Direction::read, list.ranges(), options);
  });
}

void Cache::launch(std::uint32_t number) {
  Group& group = groups_[number];  // which is this thread's, but for its ticket, until it has one
  const Slot& slot = slots_[group.slot];
  Result<Ticket> ticket = submit(group, memory_.part(slot.offset, group.layout.slot_bytes));
  const std::scoped_lock lock(mutex_);
  if (ticket) {
    group.ticket = std::move(*ticket);
  } else {
    Report report;
    report.outcome = Outcome::failed;
    report.error = std::move(ticket).error();
    finish(number, report);
  }
  changed_.notify_all();
}

void Cache::settle(std::uint32_t number) {
  Group& group = groups_[number];
  if (group.state != State::loading || !group.ticket) return;
  if (group.ticket.ended()) finish(number, group.ticket.report());
}

void Cache::settle_all() {
  for (std::size_t i = loading_.size(); i-- > 0;) settle(loading_[i]);
}

void Cache::finish(std::uint32_t number, const Report& report) {
  Group& group = groups_[number];
  Slot& slot = slots_[group.slot];
  std::erase(loading_, number);
  loading_bytes_ -= group.layout.wanted_bytes;
  group.ticket = Ticket();
  changed_.notify_all();
  if (report.ok()) {
    group.state = State::loaded;
    ++group.report.loads;
    group.report.loaded_bytes += group.layout.wanted_bytes;
  } else {
    ++group.report.failed_loads;
    group.error = error_of(report);
    if (report.outcome == Outcome::abandoned) {
      slot.is_lost = true;
      ++classes_[group.slot_class].lost;
    }
    vacate(group);
  }
}

Error Cache::error_of(const Report& report) const {
  if (is_closing_ && report.outcome == Outcome::cancelled) {
    return {Code::cancelled, 0, "the Layers were closed before it was loaded", ""};
  }
  return report.error.value_or(Error{Code::internal, 0, "a load failed without an error", ""});
}

void Cache::let_go(Group& group) {
  if (--group.report.held != 0) return;
  changed_.notify_all();
  notice();
}

std::uint32_t Cache::next_wish(const std::vector<bool>& full) const {
  const auto is_open = [&](std::uint32_t number) {
    const Group& group = groups_[number];
    return group.slot == none && !group.error && !full[group.slot_class] && classes_[group.slot_class].demanded == 0;
  };
  for (std::uint32_t i = 0; pins_ != 0 && i < groups_.size(); ++i) {
    if (groups_[i].report.is_pinned && is_open(i)) return i;
  }
  for (std::size_t i = first_hint_; i < hints_.size(); ++i) {
    if (hints_[i] != none && is_open(hints_[i])) return hints_[i];
  }
  std::uint32_t soonest = none;
  for (std::uint32_t i = 0; i < groups_.size(); ++i) {
    const auto due = [&](std::uint32_t group) { return uses_[group].last + uses_[group].gap; };
    if (!is_expected(uses_[i], now_) || (soonest != none && due(i) >= due(soonest))) continue;
    if (is_open(i)) soonest = i;
  }
  return soonest;
}

std::uint32_t Cache::next_ahead(bool& waits_for_stream) {
  if (absent_ == 0 || is_closing_) return none;
  std::vector<bool> full(classes_.size());
  while (loading_.size() < loads_at_least || loading_bytes_ < options_.ahead_bytes) {
    const std::uint32_t group = next_wish(full);
    if (group == none) return none;
    const bool is_pinned = groups_[group].report.is_pinned;
    const Room room = take_slot(group, {.demanded = is_pinned, .distance = distance_of(group)});
    if (room == Room::found) return group;
    waits_for_stream = waits_for_stream || room == Room::later;
    full[groups_[group].slot_class] = true;
  }
  return none;
}

bool Cache::load_ahead() {
  bool waits_for_stream = false;
  std::unique_lock lock(mutex_);
  settle_all();
  for (std::uint32_t group = none; (group = next_ahead(waits_for_stream)) != none;) {
    lock.unlock();
    launch(group);
    lock.lock();
  }
  return waits_for_stream;
}

void Cache::keep() {
  while (true) {
    bool waits_for_stream = false;
    try {
      waits_for_stream = load_ahead();
    } catch (const std::bad_alloc&) {  // acquires load what they need, and tell it
    }
    {
      const std::scoped_lock lock(mutex_);
      if (is_closing_) return;
    }
    std::unique_lock lock(bell_->mutex);
    const auto time = waits_for_stream ? std::chrono::duration_cast<std::chrono::nanoseconds>(look_again) : idle;
    bell_->rung.wait_for(lock, time, [&] { return bell_->has_rung; });
    bell_->has_rung = false;
  }
}

void Cache::notice() {
  if (absent_ != 0) bell_->ring();
}

}  // namespace penstock::layers
