// The ranges of a Request: what they name, and who reaches their memory.
#include "core/request.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/callback.h"
#include "core/cut.h"
#include "core/environment.h"
#include "cuda/driver.h"

namespace penstock::core {

namespace {

Error invalid_range(std::size_t index, std::string what, std::string hint) {
  return {Code::invalid_argument, 0, "range " + std::to_string(index) + ": " + std::move(what), std::move(hint)};
}

Error invalid_memory(std::size_t index, Error error) {
  error.message = "range " + std::to_string(index) + ": " + error.message;
  return error;
}

// What is wrong with a range; null: nothing.
struct Fault {
  const char* what;
  const char* hint;
};

const Fault* fault_of(const Range& range, bool needs_memory) {
  static constexpr Fault no_store{"no store", "open one first"};
  static constexpr Fault foreign_store{"a store of another kind of Context", "open it with this Context"};
  static constexpr Fault no_memory{"memory at address 0", "give memory of the size of the transfer"};
  static constexpr Fault past_addresses{"memory that ends past the last address",
                                        "give memory of the size of the transfer"};
  static constexpr Fault past_offsets{"offset plus size overflows", "offset plus size must be below 2^63 bytes"};
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  const auto address = reinterpret_cast<std::uintptr_t>(range.memory.data);
  const std::uint64_t size = range.memory.size_bytes;
  if (range.store == nullptr || !*range.store) return &no_store;
  if (StoreEntry::of(range.store) == nullptr) return &foreign_store;
  if (needs_memory && size != 0 && address == 0) return &no_memory;
  if (needs_memory && size > UINTPTR_MAX - address) return &past_addresses;
  if (size > most || range.offset > most - size) return &past_offsets;
  return nullptr;
}

Status check_stored(std::size_t index, const Range& range, Direction direction, const Options& options) {
  const Stored& stored = *range.stored;
  if (direction != Direction::read) return invalid_range(index, "only reads are transformed", "write the stored bytes");
  if (!stored.transform || stored.bytes == 0) {
    return invalid_range(index, "nothing is stored, or there is no transform", "set Stored::transform and bytes");
  }
  if (stored.bytes > std::numeric_limits<std::int64_t>::max() - range.offset) {
    return invalid_range(index, "offset plus stored bytes overflows", "their sum must be below 2^63 bytes");
  }
  const std::uint64_t lane_bytes = options.staging_slot_bytes * options.staging_slots_per_lane;
  const bool fits_staging = range.memory.domain.host_accessible() || range.memory.size_bytes <= lane_bytes / 2;
  if (stored.bytes <= options.staging_slot_bytes && fits_staging) return {};
  return invalid_range(index,
                       std::to_string(stored.bytes) + " stored bytes for " + std::to_string(range.memory.size_bytes) +
                           " of memory don't fit staging memory",
                       "store shorter pieces, or raise the option staging_slot_bytes");
}

}  // namespace

// Every store that is named, once; and for each range, which one: empty if there is only one.
std::vector<std::uint32_t> Request::add_stores(std::span<const Range> ranges, bool only_one) {
  if (only_one) {
    const auto entry = StoreEntry::of(ranges.front().store)->shared_from_this();
    stores.resize(1);
    stores[0].entry = entry;
    stores[0].facts = entry->facts();
    return {};
  }
  std::vector<std::uint32_t> store_of;
  store_of.reserve(ranges.size());
  std::unordered_map<const StoreEntry*, std::uint32_t> index_of;
  std::vector<StoreUse> uses;
  for (const Range& range : ranges) {
    StoreEntry* const entry = StoreEntry::of(range.store);
    const auto [place, added] = index_of.try_emplace(entry, static_cast<std::uint32_t>(uses.size()));
    if (added) uses.push_back({.entry = entry->shared_from_this(), .facts = entry->facts()});
    store_of.push_back(place->second);
  }
  stores.resize(uses.size());
  std::move(uses.begin(), uses.end(), stores.begin());
  return store_of;
}

// What engines know of the memory of ranges, most of which lies where that of the range before does.
class Request::KnownMemory {
 public:
  // Most programs attach nothing.
  explicit KnownMemory(Environment& environment) : map_(environment.memory), is_empty_(map_.empty()) {}

  bool is_empty() const { return is_empty_; }
  const MemoryMap::Entry& find(const std::byte* data, std::uint64_t length) {
    const bool same = entry_ != nullptr && entry_->covers(data, length);
    if (same) return entry_;
    reached_from_ = nullptr;
    entry_ = is_empty_ ? nullptr : look_up(data, length);
    return entry_;
  }
  // How a span of that memory is reached by the engine of a store.
  void note_reach(const Span& span, const StoreEntry& store) {
    if (entry_ == nullptr) return;
    reached_from_ = &store;
    attached_ = span.attached;
    is_out_of_reach_ = span.is_out_of_reach;
  }
  // The same for another span; false: it lies elsewhere, or is of another store.
  bool reach_alike(Span& span, const StoreEntry& store) const {
    if (reached_from_ != &store || !entry_->covers(span.memory, span.length)) return false;
    span.attached = attached_;
    span.is_out_of_reach = is_out_of_reach_;
    return true;
  }
  const MemoryMap::Entry& attach(Region allocation) {
    reached_from_ = nullptr;
    entry_ = allocation.data != refused_ ? map_.attach_on_use(allocation) : nullptr;
    if (entry_ != nullptr) is_empty_ = false;
    snapshot_ = nullptr;
    refused_ = entry_ != nullptr ? nullptr : allocation.data;
    return entry_;
  }

 private:
  // The first time where this thread was before; then in a snapshot, since there may be many.
  MemoryMap::Entry look_up(const std::byte* data, std::uint64_t length) {
    if (!std::exchange(has_looked_, true)) return map_.find(data, length);
    if (snapshot_ == nullptr) snapshot_ = map_.snapshot();
    return MemoryMap::find(*snapshot_, data, length);
  }

  MemoryMap& map_;
  bool is_empty_;
  bool has_looked_ = false;
  std::shared_ptr<const MemoryMap::Snapshot> snapshot_;
  MemoryMap::Entry entry_;
  const StoreEntry* reached_from_ = nullptr;  // null: it is not known how
  const engine::Attached* attached_ = nullptr;
  bool is_out_of_reach_ = false;
  const std::byte* refused_ = nullptr;
};

// The GPUs that have the memory of ranges, most of which lies in the same allocation as that of the range before.
struct Request::KnownGpu {
  struct Found {
    Region allocation;
    cuda::Device* gpu = nullptr;
  };

  static bool covers(Region memory, const Span& span) {
    return span.memory >= memory.data && span.length <= memory.size_bytes &&
           static_cast<std::size_t>(span.memory - memory.data) <= memory.size_bytes - span.length;
  }
  // The same for another span; false: it lies elsewhere, or is of another store.
  bool reach_alike(Span& span, Domain domain, const StoreEntry& entry) const {
    if (reached_from != &entry || domain != reached.domain || !covers(reached, span)) return false;
    span.gpu = gpu;
    span.attached = attached;
    span.is_out_of_reach = true;
    return true;
  }

  void set(const Found& found) {
    if (gpu != found.gpu) store = nullptr;
    reached_from = nullptr;
    gpu = found.gpu;
    allocation = found.allocation;
  }
  // False: the driver was not asked about this memory yet.
  bool recall(const Span& span, Domain domain) {
    auto at = asked.upper_bound(span.memory);
    if (at == asked.begin()) return false;
    const Found& found = (--at)->second;
    if (found.allocation.domain != domain || !covers(found.allocation, span)) return false;
    set(found);
    return true;
  }

  cuda::Driver* driver = nullptr;
  std::map<const std::byte*, Found> asked;  // by the beginnings of allocations
  cuda::Device* gpu = nullptr;
  Region allocation;
  const StoreEntry* store = nullptr;           // that was looked at last, for that GPU
  StoreEntry* direct = nullptr;                // the same, by an engine that reaches GPUs
  std::optional<KnownMemory> memory;           // what that engine knows, from the first time on that it is asked
  const StoreEntry* reached_from = nullptr;    // null: it is not known how
  Region reached;                              // from there, all of it alike
  const engine::Attached* attached = nullptr;  // of that
};

void Request::reach_from_host(Span& span, const StoreEntry& entry, KnownMemory& known) {
  const engine::HostReach reach = entry.host_reach();
  const MemoryMap::Entry* found = &known.find(span.memory, span.length);
  const HeldMemory::Holder buffer =
      *found == nullptr && reach == engine::HostReach::attached ? held.holder_of(span.memory) : nullptr;
  if (buffer) {
    const Region memory = buffer->region();
    buffer->on_free(environment_.get(), [known = environment_, memory] {
      if (!known->fork_guard.in_child()) (void)known->memory.detach(memory);
    });
    found = &known.attach(memory);
  }
  if (*found != nullptr && hold(*found)) span.attached = (*found)->by_engine[entry.engine()].get();
  if (reach != engine::HostReach::any) {
    const bool is_reached = reach == engine::HostReach::attached && span.attached != nullptr &&
                            (*environment_->engines)[entry.engine()]->memory()->reaches(*span.attached, entry.store());
    span.is_out_of_reach = !is_reached;
    needs_staging |= !is_reached && reach == engine::HostReach::attached;  // of ours
  }
  known.note_reach(span, entry);
}

// False: it left the table meanwhile.
bool Request::hold(const MemoryMap::Entry& entry) {
  if (!entry->on_use) return true;
  const bool is_held = std::any_of(attachments.rbegin(), attachments.rend(),
                                   [&](const AttachmentUse& use) { return use.get() == entry.get(); });
  if (is_held) return true;
  AttachmentUse use(entry);
  if (!use.is_valid()) return false;
  attachments.push_back(std::move(use));
  return true;
}

AttachmentUse Request::attachment_of(const engine::Attached* attached) const {
  const auto names_it = [&](const AttachmentUse& use) {
    return std::any_of(use.get()->by_engine.begin(), use.get()->by_engine.end(),
                       [&](const auto& one) { return one.get() == attached; });
  };
  const auto found =
      attached != nullptr ? std::find_if(attachments.begin(), attachments.end(), names_it) : attachments.end();
  return found != attachments.end() ? *found : AttachmentUse();
}

Status Request::add_ranges(std::span<const Range> ranges) {
  if (ranges.size() > std::numeric_limits<std::int32_t>::max()) {
    return Error{Code::invalid_argument, 0, "more than 2^31 - 1 ranges in a request", "split it"};
  }
  if (ranges.empty()) return {};
  const bool needs_memory = engine::moves_bytes(kind);
  const Store* const first = ranges.front().store;
  bool only_one = true;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    if (const Fault* fault = fault_of(range, needs_memory)) return invalid_range(i, fault->what, fault->hint);
    only_one &= range.store == first || StoreEntry::of(range.store) == StoreEntry::of(first);
    if (range.stored == nullptr) continue;
    if (auto status = check_stored(i, range, direction, environment_->options); !status) return status;
  }
  const std::vector<std::uint32_t> store_of = add_stores(ranges, only_one);
  spans.reserve(ranges.size(), environment_->spare_spans);
  KnownMemory known(*environment_);
  KnownGpu known_gpu;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const Range& range = ranges[i];
    Span& span = spans.add({.offset = range.offset, .length = range.memory.size_bytes, .memory = range.memory.data});
    if (!store_of.empty()) span.store = store_of[i];
    StoreUse& use = stores[span.store];
    const StoreEntry& entry = *use.entry;
    const bool has_memory = span.memory != nullptr && span.length != 0;
    if (has_memory && !held.add(span.memory, span.length)) {
      return Error{Code::out_of_range, 0,
                   "range " + std::to_string(i) + ": its memory lies partly in a Buffer and partly outside",
                   "stay within the Buffer"};
    }
    std::uint64_t stored = span.length;
    if (range.stored != nullptr) {
      if (!transforms) transforms = std::make_unique<Transforms>();
      transforms->uses.push_back({*range.stored});
      span.transform = static_cast<std::uint32_t>(transforms->uses.size()) & INT32_MAX;
      span.is_out_of_reach = true;
      needs_staging = true;
      stored = range.stored->bytes;
    }
    if (!range.memory.domain.host_accessible()) {
      const Domain domain = range.memory.domain;
      const bool is_alike = has_memory && span.transform == 0 && known_gpu.reach_alike(span, domain, entry);
      if (!is_alike) {
        if (auto status = reach_gpu(span, i, domain, known_gpu); !status) return status;
      }
    } else if (!entry.from_host()) {
      return Error{Code::unsupported, 0,
                   "range " + std::to_string(i) + ": engine " + engine_name(entry.engine()) +
                       " moves bytes only to and from GPU memory",
                   "leave the engine unset"};
    } else if (has_memory && span.transform == 0 && !known.reach_alike(span, entry)) {
      const bool reaches_all = entry.host_reach() == engine::HostReach::any && known.is_empty();
      if (!reaches_all) reach_from_host(span, entry, known);
    }
    use.begin = std::min(use.begin, span.offset);
    use.end = std::max(use.end, span.offset + stored);
    if (kind == engine::OpKind::deallocate) keep_whole_blocks(span, entry);
    total_bytes += span.length;
  }
  if (!has_gpu) return {};
  // So that the report finds it decided, of every store.
  for (const StoreUse& use : stores) use.entry->for_device(*environment_);
  return {};
}

void Request::keep_whole_blocks(Span& span, const StoreEntry& entry) const {
  const std::uint64_t alignment = entry.alignment(direction);
  const std::uint64_t end = align_down(span.offset + span.length, alignment);
  span.offset = align_up(span.offset, alignment);
  span.length = end > span.offset ? end - span.offset : 0;
}

Status Request::reach_gpu(Span& span, std::size_t index, Domain domain, KnownGpu& known) {
  has_gpu = true;
  const bool is_found =
      known.gpu != nullptr && domain == known.allocation.domain && KnownGpu::covers(known.allocation, span);
  if (!is_found && !known.recall(span, domain)) {
    if (auto status = find_gpu(span, index, domain, known); !status) return status;
  }
  if (span.length == 0) return {};
  span.gpu = known.gpu;
  span.is_out_of_reach = true;
  if (span.transform != 0) {
    TransformUse& use = transforms->uses[span.transform - 1];
    use.is_for_gpu = call_back("Transform::is_for", [&] { return use.stored.transform->is_for(known.gpu->info()); });
    return {};
  }
  StoreEntry& entry = *stores[span.store].entry;
  if (known.store != &entry) {
    known.store = &entry;
    known.direct = entry.for_device(*environment_);
    needs_staging |= !reads_straight(*known.gpu, entry);
  }
  known.reached_from = &entry;
  known.reached = known.allocation;
  known.attached = nullptr;
  if (known.direct == nullptr) return {};
  if (!known.memory) known.memory.emplace(*environment_);
  const MemoryMap::Entry* found = &known.memory->find(span.memory, span.length);
  if (*found == nullptr && known.driver->is_one_allocation(known.allocation.data)) {
    found = &known.memory->attach(known.allocation);
  }
  if (*found == nullptr || !hold(*found)) {
    known.reached_from = nullptr;
    return {};
  }
  known.attached = span.attached = (*found)->by_engine[known.direct->engine()].get();
  known.reached = {const_cast<std::byte*>((*found)->begin), static_cast<std::size_t>((*found)->end - (*found)->begin),
                   domain};
  return {};
}

// Asks the driver, once for each allocation. What is empty lies nowhere.
Status Request::find_gpu(const Span& span, std::size_t index, Domain domain, KnownGpu& known) {
  const auto driver = cuda::Driver::get();
  if (!driver) return driver.error();
  if (span.length == 0) return {};
  auto gpu = (*driver)->device(domain.device());
  if (!gpu) return gpu.error();
  auto found = (*driver)->find(span.memory, span.length);
  if (!found) return invalid_memory(index, std::move(found).error());
  if (found->domain != domain) {
    return invalid_range(index, "the memory is of " + found->domain.name() + ", not of " + domain.name(),
                         "give the device that the memory is on; find_cuda_region finds it");
  }
  if (!KnownGpu::covers(*found, span)) {
    return invalid_range(index, "reaches past the end of the allocation on " + domain.name(),
                         "give memory of the size of the transfer");
  }
  known.driver = *driver;
  known.set(known.asked[found->data] = {*found, *gpu});
  note_reach(**gpu, *stores[span.store].entry);
  return {};
}

bool Request::reads_straight(const cuda::Device& gpu, StoreEntry& entry) const {
  if (direction != Direction::read || cache == Cache::keep) return false;
  const StoreEntry* direct = entry.for_device(*environment_);
  if (direct == nullptr) return false;
  const auto route = direct->store().device_route_to(gpu.info());
  return route && (allowed & route_bit(*route)) != 0;
}

void Request::note_reach(const cuda::Device& gpu, StoreEntry& entry) {
  const StoreEntry* direct = entry.for_device(*environment_);
  if (direct == nullptr || direct->store().device_route_to(gpu.info())) return;
  rare().passed_over = engine_name(direct->engine()) + " not used: it does not reach " + gpu.info().name + " now";
}

}  // namespace penstock::core
