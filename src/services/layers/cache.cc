#include "services/layers/cache.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "penstock/machine.h"
#include "services/models/ending.h"
#include "services/models/packed_indexes.h"
#include "services/models/range_list.h"

namespace penstock::layers {
namespace {

constexpr std::size_t groups_most = 1 << 20;
constexpr std::size_t hints_most = 1 << 20;
constexpr std::size_t loads_at_least = 2;                   // so that one is under way when another ends
constexpr auto look_again = std::chrono::microseconds(50);  // whether a stream has passed
constexpr auto idle = std::chrono::seconds(1);

std::string in_quotes(const std::string& name) {
  return "\"" + name + "\"";
}

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

Cache::Cache(Context& context, const Model& model, std::vector<TensorGroup> groups, const LayersOptions& options)
    : context_(context),
      options_(options),
      infos_(std::move(groups)),
      half_life_(half_life(infos_.size())),
      stores_(context, model, all_files(model, options)),
      uses_(infos_.size()),
      groups_(infos_.size()) {}

Result<std::unique_ptr<Cache>> Cache::open(Context& context, const Model& model, std::vector<TensorGroup> groups,
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
  const auto twice = std::ranges::unique(packed);
  packed.erase(twice.begin(), twice.end());
  return models::PackedIndexes::read(context_, model, stores_, packed, {});
}

Status Cache::lay_out_all(const Model& model) {
  if (Status status = read_indexes(model); !status) return status;
  for (std::size_t i = 0; i < infos_.size(); ++i) {
    const std::string& name = infos_[i].name;
    if (name.empty() || !by_name_.emplace(name, i).second) {
      return Error{Code::invalid_argument, 0,
                   "group " + std::to_string(i) +
                       (name.empty() ? std::string(" has no name") : ": the name " + in_quotes(name) + " is taken"),
                   "give each group a name of its own"};
    }
    auto layout = lay_out(model, infos_[i]);
    if (!layout) return std::move(layout).error();
    groups_[i].layout = std::move(*layout);
    groups_[i].tensors.resize(infos_[i].tensors.size());
  }
  std::uint64_t wanted_bytes = 0;
  for (const Group& group : groups_) wanted_bytes += group.layout.wanted_bytes;
  keeps_ = context_.options().cache == penstock::Cache::automatic && wanted_bytes <= Machine::detect().memory_bytes / 2;
  return {};
}

Status Cache::cut() {
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    sizes.push_back(groups_[i].layout.slot_bytes);
    if (sizes.back() > options_.budget_bytes) {
      return Error{Code::invalid_argument, 0,
                   "a budget of " + std::to_string(options_.budget_bytes) + " bytes is smaller than the group \"" +
                       infos_[i].name + "\", which needs " + std::to_string(sizes.back()),
                   "raise the budget, or make the groups smaller"};
    }
  }
  auto classes = cut_into_slots(sizes, options_.budget_bytes);
  if (!classes) return std::move(classes).error();
  if (!options_.domain.host_accessible()) {
    if (Status status = context_.prepare(options_.domain); !status) return status;
    const auto driver = cuda::Driver::get();
    if (!driver) return driver.error();
    auto gpu = (*driver)->device(options_.domain.device());
    if (!gpu) return std::move(gpu).error();
    gpu_ = *gpu;
  }
  memory_ = options_.memory;
  if (memory_.data == nullptr) {
    auto allocated = context_.allocate(options_.domain, bytes_of(*classes));
    if (!allocated) return std::move(allocated).error();
    allocated_ = std::move(*allocated);
    memory_ = allocated_.region();
  }
  memory_.size_bytes = bytes_of(*classes);
  std::uint64_t offset = 0;
  for (const SlotClass& each : *classes) {
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
  const Status late = or_out_of_memory([&] { return tell_late(); });
  if (!late) log(LogLevel::warning, late.error().message);
}

void Cache::end_loads(TimePoint deadline) {
  std::vector<Ticket> promised;
  std::vector<Ticket> others;
  {
    const std::scoped_lock lock(mutex_);
    for (const std::uint32_t number : loading_) {
      const Group& group = groups_[number];
      if (group.ticket) (group.promised != 0 ? promised : others).push_back(group.ticket);
    }
  }
  for (Ticket& load : others) models::end(load);
  for (Ticket& load : promised) {
    load.wait_for(deadline - Clock::now());
    models::end(load);
  }
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
  end_loads(deadline);  // acquires that wait for them go
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return inside_ == 0; });
  }
  end_loads(deadline);  // what the last of these began
  bool is_abandoned = false;
  {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = loading_.size(); i-- > 0;) {
      if (groups_[loading_[i]].promised != 0) settle(loading_[i]);
    }
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
  auto streams = std::make_shared<cuda::HeldStreams>();
  if (slot.group != none) vacate(groups_[slot.group]);
  slot.group = number;
  group.slot = index;
  group.state = State::loading;
  group.ticket = Ticket();
  group.streams = std::move(streams);
  group.promised = 0;
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
    options.cache = page_cache_of(group);
    options.on_end = [bell = bell_, streams = group.streams](const Report& report) {
      if (report.ok()) streams->let_go();
      bell->ring();
    };
    return context_.submit(Direction::read, list.ranges(), options);
  });
}

std::optional<penstock::Cache> Cache::page_cache_of(const Group& group) const {
  if (options_.cache || !keeps_ || group.report.loads == 0) return options_.cache;
  return penstock::Cache::keep;
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
  const bool has_ended = group.ticket.ended();  // asked first: streams that a break lets go later find the bytes
  if (group.streams->is_broken()) {
    group.streams = std::make_shared<cuda::HeldStreams>();  // for later acquires: the load goes on
    set_error(
        number,
        {Code::would_deadlock, 0, "copies could not get past a stream that waits for them",
         "set CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA starts, or put no copies on a stream behind an acquire"});
  }
  if (has_ended) finish(number, group.ticket.report());
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
    set_error(number, error_of(report));
    if (report.outcome == Outcome::abandoned) {
      slot.is_lost = true;
      ++classes_[group.slot_class].lost;
    }
    group.state = State::failed;
    if (group.report.held == 0) vacate(group);
  }
  group.promised = 0;
  group.streams->let_go();
}

Error Cache::error_of(const Report& report) const {
  if (is_closing_ && report.outcome == Outcome::cancelled) {
    return {Code::cancelled, 0, "the Layers were closed before it was loaded",
            "wait for the stream before you close them, or raise close_seconds"};
  }
  return report.error.value_or(Error{Code::internal, 0, "a load failed without an error", ""});
}

void Cache::set_error(std::uint32_t number, Error error) {
  Group& group = groups_[number];
  if (group.promised != 0) {
    error.message = "work on a stream ran without group " + in_quotes(infos_[number].name) +
                    ", which was not there: " + error.message;
    group.report.unserved += std::exchange(group.promised, 0);
    group.is_late = true;
  }
  group.error = std::move(error);
}

Error Cache::tell(Group& group) const {
  Error error = *group.error;
  if (group.report.held == 0 || is_closing_) {
    group.error.reset();
    group.is_late = false;
  }
  return error;
}

Status Cache::tell_late() {
  const std::scoped_lock lock(mutex_);
  if (!is_closing_) settle_all();
  Status first;
  for (Group& group : groups_) {
    if (!group.error || !group.is_late) continue;
    Error error = tell(group);
    if (first) first = std::move(error);
  }
  return first;
}

void Cache::let_go(Group& group) {
  if (--group.report.held != 0) return;
  if (group.state == State::failed) vacate(group);
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
  const Ticket loading = ticket;
  lock.unlock();
  const bool has_ended = loading.wait_for(deadline - Clock::now());
  const bool is_over = deadline - Clock::now() < std::chrono::milliseconds(1);
  lock.lock();
  if (has_ended || is_over) return {};
  return Error{Code::would_deadlock, 0, "acquire waits inside a callback of a request", "acquire on another thread"};
}

Status Cache::bring(std::unique_lock<std::mutex>& lock, std::uint32_t number, Until until, TimePoint deadline) {
  Group& group = groups_[number];
  Class& slots = classes_[group.slot_class];
  while (true) {
    if (is_closing_) return closed("the Layers were closed", "");
    settle(number);
    if (group.error) return tell(group);
    const bool is_loading = group.state == State::loading;
    if (group.state == State::loaded || (is_loading && until == Until::placed)) return {};
    if (Clock::now() >= deadline) {
      if (!is_loading) return no_slot(slots);
      return Error{Code::timed_out, 0,
                   "loading group " + in_quotes(infos_[number].name) + " took longer than " +
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

Status Cache::hold(std::unique_lock<std::mutex>& lock, std::uint32_t number, TimePoint deadline) {
  Status status = bring(lock, number, Until::loaded, deadline);
  if (status) ++groups_[number].report.held;
  return status;
}

Status Cache::hold_in_order(std::unique_lock<std::mutex>& lock, std::uint32_t number, CudaStream stream,
                            TimePoint deadline) {
  Group& group = groups_[number];
  if (Status status = bring(lock, number, Until::placed, deadline); !status) return status;
  ++group.report.held;  // so this load stays the group's last
  if (group.state == State::loaded) return {};
  ++group.promised;
  const auto streams = group.streams;
  lock.unlock();
  Status status = streams->hold(*gpu_, stream.handle);
  lock.lock();
  if (status) {
    --group.report.waits;  // it is the stream that waits
    ++group.report.stream_waits;
    return {};
  }
  if (group.promised != 0) --group.promised;
  let_go(group);
  // The driver is busy with frees, or our copies with streams: waiting here is as good.
  if (status.error().code == Code::would_deadlock) return hold(lock, number, deadline);
  return status;
}

bool Cache::can_hold_streams() {
  if (gpu_ == nullptr) return false;
  if (gpu_->api().stream_wait_value != nullptr) return true;
  if (!std::exchange(has_warned_, true)) {
    log(LogLevel::warning,
        "Layers: this driver can't make a stream wait (it has no cuStreamWaitValue32), so acquire waits on the host");
  }
  return false;
}

Result<std::span<const Region>> Cache::acquire(std::size_t number, std::optional<CudaStream> stream) {
  std::unique_lock lock(mutex_);
  if (Status status = check(number); !status) return std::move(status).error();
  const Inside inside(*this);
  const auto index = static_cast<std::uint32_t>(number);
  Group& group = groups_[index];
  note(index);
  settle(index);
  if (group.state == State::loaded && !group.error) {
    ++group.report.hits;
    ++group.report.held;
  } else {
    const TimePoint begun = Clock::now();
    const TimePoint deadline = time_after(begun, duration_from_seconds(options_.deadline_seconds));
    ++group.report.waits;
    ++group.waiting;
    Status status = or_out_of_memory([&] {
      return stream && can_hold_streams() ? hold_in_order(lock, index, *stream, deadline) : hold(lock, index, deadline);
    });
    --group.waiting;
    group.report.wait_seconds += seconds_between(begun, Clock::now());
    if (!status) return std::move(status).error();
  }
  notice();
  return std::span<const Region>(group.tensors);
}

Status Cache::release(std::size_t number, CudaStream stream) {
  const std::scoped_lock lock(mutex_);
  if (Status status = check(number); !status) return status;
  Group& group = groups_[number];
  if (group.report.held == 0) {
    return Error{Code::invalid_argument, 0,
                 "release of group " + in_quotes(infos_[number].name) + ", which is not held",
                 "release a group as often as it was acquired"};
  }
  if (gpu_ != nullptr) {
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
  settle(static_cast<std::uint32_t>(number));
  let_go(group);
  if (group.error) return tell(group);
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
                 "pinning group " + in_quotes(infos_[number].name) +
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
    report.all.stream_waits += group.report.stream_waits;
    report.all.unserved += group.report.unserved;
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
    if (groups_[i].report.held != 0) held.push_back(in_quotes(infos_[i].name));
  }
  if (held.empty()) return {};
  return Error{Code::in_use, 0, "groups are held: " + list_of(held), "release them before you close the Layers"};
}

}  // namespace penstock::layers
