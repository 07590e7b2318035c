#include "services/layers/cache.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "penstock/machine.h"
#include "services/models/contents.h"
#include "services/models/ending.h"
#include "services/models/packed_indexes.h"

namespace penstock::layers {
namespace {

constexpr std::size_t groups_most = 1 << 20;
constexpr std::size_t hints_most = 1 << 20;

Error closed(const char* what, const char* hint) {
  return {Code::closed, 0, what, hint};
}

models::WantedFiles all_files(const Model& model, const LayersOptions& options) {
  return {.files = std::vector<bool>(model.files().size(), true), .to_gpu = !options.domain.host_accessible()};
}

// Kernels may still read it, so nobody may get it from now on. It stays reachable, so that it is not taken for a leak.
void keep_for_good(Buffer memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<Buffer>;
  const std::scoped_lock lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

void Cache::Bell::ring() {
  {
    const std::scoped_lock lock(mutex);
    if (has_rung) return;
    has_rung = true;
  }
  rung.notify_one();
}

Cache::Cache(const Context& context, const Model& model, std::vector<TensorGroup> groups, const LayersOptions& options)
    : context_(context),
      options_(options),
      infos_(std::move(groups)),
      half_life_(half_life(infos_.size())),
      stores_(context, model, all_files(model, options)),
      uses_(infos_.size()),
      groups_(infos_.size()) {}

Result<std::unique_ptr<Cache>> Cache::open(const Context& context, const Model& model, std::vector<TensorGroup> groups,
                                           const LayersOptions& options) {
  if (groups.empty() || groups.size() > groups_most) {
    return Error{Code::invalid_argument, 0, std::to_string(groups.size()) + " groups",
                 "give at least one, and at most " + std::to_string(groups_most)};
  }
  if (Status status = check_seconds("deadline_seconds", options.deadline_seconds); !status) {
    return std::move(status).error();
  }
  LayersOptions used = options;
  if (options.memory.data != nullptr) {
    used.domain = options.memory.domain;
    used.budget_bytes = options.memory.size_bytes;
  }
  std::unique_ptr<Cache> cache(new Cache(context, model, std::move(groups), used));
  if (Status status = cache->lay_out_all(model); !status) return std::move(status).error();
  if (Status status = cache->cut(); !status) return std::move(status).error();
  if (Status status = cache->start(); !status) return std::move(status).error();
  return cache;
}

// Where the chunks of packed tensors lie.
Status Cache::read_indexes(const Model& model) {
  std::vector<std::uint32_t> packed;
  for (const TensorGroup& group : infos_) {
    for (const GroupTensor& each : group.tensors) {
      if (each.tensor < model.tensors().size() && !model.tensors()[each.tensor].packing.empty()) {
        packed.push_back(each.tensor);
      }
    }
  }
  if (packed.empty()) return {};
  std::ranges::sort(packed);
  packed.erase(std::unique(packed.begin(), packed.end()), packed.end());
  return models::PackedIndexes::read(context_, model, stores_, packed, {});
}

Status Cache::lay_out_all(const Model& model) {
  if (Status status = read_indexes(model); !status) return status;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const std::string& name = infos_[i].name;
    if (name.empty() || !by_name_.emplace(name, i).second) {
      return Error{
          Code::invalid_argument, 0,
          "group " + std::to_string(i) +
              (name.empty() ? std::string(" has no name") : ": the name " + models::in_quotes(name) + " is taken"),
          "give each group a name of its own"};
    }
    auto layout = lay_out(model, infos_[i]);
    if (!layout) return std::move(layout).error();
    groups_[i].layout = std::move(*layout);
    groups_[i].tensors.resize(infos_[i].tensors.size());
  }
  return {};
}

Status Cache::cut() {
  // A GPU that is not there matters more than the budget for it.
  if (!options_.domain.host_accessible()) {
    if (Status status = context_.prepare(options_.domain); !status) return status;
  }
  std::vector<std::uint64_t> sizes;
  sizes.reserve(groups_.size());
  for (const Group& group : groups_) sizes.push_back(group.layout.slot_bytes);
  const auto largest = std::ranges::max_element(sizes);
  if (slot_bytes_for(*largest) > options_.budget_bytes) {
    return Error{Code::invalid_argument, 0,
                 "a budget of " + std::to_string(options_.budget_bytes) + " bytes is smaller than the group " +
                     models::in_quotes(infos_[static_cast<std::size_t>(largest - sizes.begin())].name) +
                     ", which needs " + std::to_string(slot_bytes_for(*largest)),
                 "raise the budget, or make the groups smaller"};
  }
  const std::vector<SlotClass> classes = cut_into_slots(sizes, options_.budget_bytes);
  memory_ = options_.memory;
  if (memory_.data == nullptr) {
    auto allocated = context_.allocate(options_.domain, bytes_of(classes));
    if (!allocated) return std::move(allocated).error();
    allocated_ = std::move(*allocated);
    memory_ = allocated_.region();
  }
  memory_.size_bytes = bytes_of(classes);
  std::uint64_t offset = 0;
  for (const SlotClass& each : classes) {
    Class slots{.slot_bytes = each.slot_bytes,
                .first_slot = static_cast<std::uint32_t>(slots_.size()),
                .slots = static_cast<std::uint32_t>(each.slots)};
    slots.turns = {.groups = each.groups.size(),
                   .slots = each.slots,
                   .for_turns = slots_for_turns(each.slots, each.slot_bytes, options_.ahead_bytes)};
    for (std::size_t i = 0; i < each.slots; ++i) {
      slots_.push_back({.offset = offset});
      offset += each.slot_bytes;
    }
    for (std::size_t i = 0; i < each.groups.size(); ++i) {
      groups_[each.groups[i]].slot_class = static_cast<std::uint32_t>(classes_.size());
      groups_[each.groups[i]].rank = static_cast<std::uint32_t>(i);
    }
    classes_.push_back(slots);
  }
  candidates_.reserve(slots_.size());
  loading_.reserve(slots_.size());
  absent_ = groups_.size();
  return {};
}

Status Cache::start() {
  if (options_.in_order) {
    // As if one pass had been made.
    now_ = groups_.size();
    for (std::size_t i = 0; i < uses_.size(); ++i)
      uses_[i] = {.last = i + 1, .gap = now_, .regular = true, .weight = 1};
  }
  bell_->has_rung = true;
  try {
    keeper_ = std::thread([this] { keep(); });
  } catch (const std::system_error& error) {
    return system_error(error.code().value(), "start a thread", "raise the limit of threads");
  }
  return {};
}

Cache::~Cache() {
  shut_down();
}

void Cache::end_loads() {
  std::vector<Ticket> loads;
  {
    const std::scoped_lock lock(mutex_);
    for (const std::uint32_t number : loading_) {
      if (groups_[number].ticket) loads.push_back(groups_[number].ticket);
    }
  }
  for (Ticket& load : loads) models::end(load);
}

bool Cache::shut_down() {
  const std::scoped_lock one_at_a_time(closing_);
  if (!keeper_.joinable()) return false;
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
  }
  const TimePoint deadline =
      time_after(Clock::now(), duration_from_seconds(context_.options().deadlines.close_seconds));
  changed_.notify_all();
  bell_->ring();
  keeper_.join();
  end_loads();  // acquires that wait for them go
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ == 0; });
  }
  end_loads();  // what the last of these began
  bool is_abandoned = false;
  {
    const std::scoped_lock lock(mutex_);
    is_abandoned = std::ranges::any_of(slots_, &Slot::is_lost);
    for (const std::uint32_t group : loading_) {
      is_abandoned = is_abandoned || groups_[group].ticket.outcome() == Outcome::abandoned;
    }
  }
  while (!std::ranges::all_of(slots_, [&](Slot& slot) { return has_passed(slot); })) {
    if (Clock::now() >= deadline) {
      keep_for_good(std::move(allocated_));
      break;
    }
    std::this_thread::sleep_for(look_again);
  }
  allocated_ = {};
  return is_abandoned;
}

std::optional<std::size_t> Cache::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

std::uint64_t Cache::size_bytes(std::size_t group) const {
  return group < groups_.size() ? groups_[group].layout.wanted_bytes : 0;
}

Status Cache::check(std::size_t group) const {
  if (is_closing_) return closed("the Layers are closed", "");
  if (group < groups_.size()) return {};
  return Error{Code::out_of_range, 0,
               "there is no group " + std::to_string(group) + " among " + std::to_string(groups_.size()),
               "groups are counted from 0; find gives the number of a name"};
}

void Cache::note(std::uint32_t group) {
  note_use(uses_[group], ++now_, half_life_);
  drop_hint(group);
}

void Cache::drop_hint(std::uint32_t number) {
  Group& group = groups_[number];
  if (group.hint == none) return;
  hints_[group.hint] = none;
  const auto again = std::find(hints_.begin() + group.hint, hints_.end(), number);
  group.hint = again == hints_.end() ? none : static_cast<std::uint32_t>(again - hints_.begin());
  while (first_hint_ < hints_.size() && hints_[first_hint_] == none) ++first_hint_;
}

double Cache::distance_of(std::uint32_t group) const {
  const std::uint32_t hint = groups_[group].hint;
  if (hint != none) return static_cast<double>(hint - first_hint_ + 1);
  return distance(uses_[group], now_, half_life_);
}

Error Cache::no_slot(const Class& slots) const {
  if (slots.lost == slots.slots) {
    return {Code::abandoned, 0, "every slot for groups of this size may still be written to by a load that never ended",
            "close the Layers, and open them again"};
  }
  return {Code::timed_out, 0,
          "all " + std::to_string(slots.slots) + " slots for groups of this size were held for " +
              std::to_string(options_.deadline_seconds) + " s",
          "release groups before others are acquired, or raise the budget"};
}

Status Cache::wait_for_load(std::unique_lock<std::mutex>& lock, const Ticket& ticket, TimePoint deadline) {
  // It may be another once the lock is released. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const Ticket loading = ticket;
  lock.unlock();
  const bool has_ended = loading.wait_for(deadline - Clock::now());
  const bool is_over = deadline - Clock::now() < std::chrono::milliseconds(1);
  lock.lock();
  if (has_ended || is_over) return {};
  return Error{Code::would_deadlock, 0, "acquire waits inside a callback of a request", "acquire on another thread"};
}

Status Cache::bring(std::unique_lock<std::mutex>& lock, std::uint32_t number, TimePoint deadline) {
  Group& group = groups_[number];
  Class& slots = classes_[group.slot_class];
  while (true) {
    if (is_closing_) return closed("the Layers were closed", "");
    settle(number);
    if (group.error) return *std::exchange(group.error, std::nullopt);
    const bool is_loading = group.state == State::loading;
    if (group.state == State::loaded) return {};
    if (Clock::now() >= deadline) {
      if (!is_loading) return no_slot(slots);
      return Error{Code::timed_out, 0,
                   "loading group " + models::in_quotes(infos_[number].name) + " took longer than " +
                       std::to_string(options_.deadline_seconds) + " s",
                   "it goes on; acquire it again, or wait longer"};
    }
    if (is_loading) {
      if (!group.ticket) {
        changed_.wait_until(lock, deadline);  // another thread submits it
      } else if (Status status = wait_for_load(lock, group.ticket, deadline); !status) {
        return status;
      }
      continue;
    }
    const Room room = take_slot(number, {.demanded = true});
    if (room == Room::found) {
      lock.unlock();
      launch(number);
      lock.lock();
      continue;
    }
    if (slots.lost == slots.slots) return no_slot(slots);
    ++slots.demanded;
    changed_.wait_until(lock, room == Room::later ? std::min(deadline, Clock::now() + look_again) : deadline);
    --slots.demanded;
  }
}

Result<std::span<const Region>> Cache::acquire(std::size_t number) {
  std::unique_lock lock(mutex_);
  if (Status status = check(number); !status) return std::move(status).error();
  const Inside inside(*this);
  const auto index = static_cast<std::uint32_t>(number);
  Group& group = groups_[index];
  note(index);
  settle(index);
  if (group.state == State::loaded && !group.error) {
    ++group.report.hits;
  } else {
    const TimePoint begun = Clock::now();
    const TimePoint deadline = time_after(begun, duration_from_seconds(options_.deadline_seconds));
    ++group.report.waits;
    ++group.waiting;
    Status status = or_out_of_memory([&] { return bring(lock, index, deadline); });
    --group.waiting;
    group.report.wait_seconds += seconds_between(begun, Clock::now());
    if (!status) return std::move(status).error();
  }
  ++group.report.held;
  notice();
  return std::span<const Region>(group.tensors);
}

Status Cache::release(std::size_t number, CudaStream stream) {
  const std::scoped_lock lock(mutex_);
  if (Status status = check(number); !status) return status;
  Group& group = groups_[number];
  if (group.report.held == 0) {
    return Error{Code::invalid_argument, 0,
                 "release of group " + models::in_quotes(infos_[number].name) + ", which is not held",
                 "release a group as often as it was acquired"};
  }
  if (!options_.domain.host_accessible()) {
    auto mark = CudaMark::put(options_.domain, stream);
    if (!mark) return std::move(mark).error();
    std::vector<Released>& released = slots_[group.slot].released;
    const auto same = std::ranges::find(released, stream.handle, &Released::stream);
    if (same != released.end()) {
      same->mark = std::move(*mark);
    } else {
      released.push_back({stream.handle, std::move(*mark)});
    }
  }
  let_go(group);
  return {};
}

Status Cache::hint(std::span<const std::size_t> groups) {
  const std::scoped_lock lock(mutex_);
  if (groups.size() > hints_most) {
    return Error{Code::invalid_argument, 0, std::to_string(groups.size()) + " hints",
                 "give at most " + std::to_string(hints_most)};
  }
  for (const std::size_t group : groups) {
    if (Status status = check(group); !status) return status;
  }
  for (const std::uint32_t group : hints_) {
    if (group != none) groups_[group].hint = none;
  }
  hints_.assign(groups.begin(), groups.end());
  first_hint_ = 0;
  for (std::size_t i = hints_.size(); i-- > 0;) groups_[hints_[i]].hint = static_cast<std::uint32_t>(i);
  notice();
  return {};
}

Status Cache::pin(std::size_t number, bool pinned) {
  const std::scoped_lock lock(mutex_);
  if (Status status = check(number); !status) return status;
  Group& group = groups_[number];
  if (group.report.is_pinned == pinned) return {};
  Class& slots = classes_[group.slot_class];
  const std::uint32_t usable = slots.slots - slots.lost;
  const std::uint32_t for_others = slots.turns.groups > slots.turns.slots ? 1 : 0;
  if (pinned && slots.pinned + for_others >= usable) {
    return Error{Code::over_budget, 0,
                 "pinning group " + models::in_quotes(infos_[number].name) +
                     " leaves no slot to others of its size: there are " + std::to_string(usable) + ", and " +
                     std::to_string(slots.pinned) + " groups are pinned",
                 "unpin a group, or raise the budget"};
  }
  slots.pinned += pinned ? 1 : -1;
  group.report.is_pinned = pinned;
  pins_ += pinned ? 1 : -1;
  changed_.notify_all();
  notice();
  return {};
}

LayersReport Cache::report() const {
  const std::scoped_lock lock(mutex_);
  LayersReport report{.memory_bytes = memory_.size_bytes};
  for (const Group& group : groups_) {
    report.groups.push_back(group.report);
    report.groups.back().is_loaded = group.state == State::loaded;
    report.all.hits += group.report.hits;
    report.all.waits += group.report.waits;
    report.all.wait_seconds += group.report.wait_seconds;
    report.all.loads += group.report.loads;
    report.all.loaded_bytes += group.report.loaded_bytes;
    report.all.failed_loads += group.report.failed_loads;
    report.all.held += group.report.held;
  }
  for (const Class& slots : classes_) {
    report.slots.push_back({slots.slot_bytes, slots.slots, slots.turns.groups, slots.lost});
  }
  return report;
}

Status Cache::check_unheld() const {
  const std::scoped_lock lock(mutex_);
  std::vector<std::string> held;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].report.held != 0) held.push_back(models::in_quotes(infos_[i].name));
  }
  if (held.empty()) return {};
  return Error{Code::in_use, 0, "groups are held: " + list_of(held), "release them before you close the Layers"};
}

}  // namespace penstock::layers
