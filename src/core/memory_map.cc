#include "core/memory_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "memory/last_found.h"
#include "memory/live_buffers.h"

namespace penstock::core {

namespace {

Error not_attachable(std::string what, std::string hint = "give memory that stays allocated while it is attached") {
  return {Code::invalid_argument, 0, "attach: " + std::move(what), std::move(hint)};
}

// The kernel refuses to sync what is not mapped, and has nothing else to do for this.
bool is_mapped(Region memory) {
  const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t lead = reinterpret_cast<std::uintptr_t>(memory.data) % page_bytes;
  return ::msync(memory.data - lead, memory.size_bytes + lead, MS_ASYNC) == 0 || errno != ENOMEM;
}

// All of it, and of the device that it says.
Status check_gpu_memory(cuda::Driver& driver, Region memory) {
  auto found = driver.find(memory.data, memory.size_bytes);
  if (!found) return std::move(found).error();
  if (found->domain != memory.domain) {
    return not_attachable("the memory is of " + found->domain.name() + ", not of " + memory.domain.name(),
                          "give the device that the memory is on; find_cuda_region finds it");
  }
  const auto offset = static_cast<std::size_t>(memory.data - found->data);
  if (memory.size_bytes > found->size_bytes - offset) {
    return not_attachable("the memory reaches past the end of its allocation on " + memory.domain.name());
  }
  return {};
}

Status check_memory(Region memory) {
  if (memory.data == nullptr || memory.size_bytes == 0)
    return not_attachable("empty memory", "give the whole allocation");
  if (memory.size_bytes > UINTPTR_MAX - reinterpret_cast<std::uintptr_t>(memory.data)) {
    return not_attachable("the memory ends past the last address");
  }
  if (memory.domain.host_accessible()) {
    return is_mapped(memory) ? Status() : not_attachable("some of the memory is not mapped");
  }
  const auto driver = cuda::Driver::get();
  return driver ? check_gpu_memory(**driver, memory) : driver.error();
}

// The order of uses, of all maps.
std::uint64_t count_of_uses() {
  static std::atomic<std::uint64_t> count{0};
  return count.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

std::shared_ptr<const MemoryMap::Snapshot> MemoryMap::snapshot() const {
  const std::scoped_lock lock(snapshot_mutex_);
  return snapshot_;
}

MemoryMap::Entry MemoryMap::find(const Snapshot& snapshot, const std::byte* data, std::size_t size) {
  const auto after =
      std::upper_bound(snapshot.begin(), snapshot.end(), data,
                       [](const std::byte* address, const auto& entry) { return address < entry->begin; });
  if (after == snapshot.begin()) return nullptr;
  const auto& entry = *std::prev(after);
  return entry->covers(data, size) && is_usable(*entry) ? entry : nullptr;
}

MemoryMap::Entry MemoryMap::find(const std::byte* data, std::size_t size) const {
  using Last = memory::LastFound<const Attachment>;
  const std::uint64_t version = version_.load(std::memory_order_acquire);
  if (const auto* last = Last::find(version, reinterpret_cast<std::uintptr_t>(data))) {
    Entry entry = last->value.lock();
    if (entry && entry->covers(data, size) && is_usable(*entry)) return entry;
  }
  Entry entry = find(*snapshot(), data, size);
  if (entry) {
    Last::remember(
        {version, reinterpret_cast<std::uintptr_t>(entry->begin), reinterpret_cast<std::uintptr_t>(entry->end), entry});
  }
  return entry;
}

bool MemoryMap::is_usable(const Attachment& entry) {
  if (entry.has_left.load(std::memory_order_relaxed)) return false;
  if (entry.is_known && entry.is_gone()) return false;
  if (entry.on_use) entry.last_used.store(count_of_uses(), std::memory_order_relaxed);
  return true;
}

std::shared_ptr<Attachment> MemoryMap::make(Region memory) {
  auto entry = std::make_shared<Attachment>();
  entry->begin = memory.data;
  entry->end = memory.data + memory.size_bytes;
  if (!memory.domain.host_accessible()) {
    entry->driver = cuda::Driver::get().value();
    entry->buffer_id = entry->driver->buffer_id(memory.data);
  }
  return entry;
}

// What an engine was told of the same memory, or of more, before that left the table.
std::shared_ptr<engine::Attached> MemoryMap::known_to(std::size_t engine, const Attachment& memory) const {
  for (const auto& one : retired_) {
    const auto entry = one.lock();
    const bool covers = entry && entry->covers(memory.begin, static_cast<std::size_t>(memory.end - memory.begin));
    if (covers && entry->buffer_id == memory.buffer_id && entry->by_engine[engine]) return entry->by_engine[engine];
  }
  return nullptr;
}

// Those that `wants` names.
void MemoryMap::attach_to_engines(Attachment& entry, Region memory, const Wants& wants) {
  entry.by_engine.resize(engines_.size());
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i] == nullptr || engines_[i]->memory() == nullptr || !wants(engines_[i]->description())) continue;
    if (is_used_ && !is_used_(i)) continue;
    entry.by_engine[i] = known_to(i, entry);
    if (!entry.by_engine[i]) {
      auto attached = engines_[i]->memory()->attach(memory);
      // An engine that can't attach still reaches the memory, only slower, or core does it.
      if (attached) {
        entry.by_engine[i] = std::move(*attached);
      } else {
        log(LogLevel::info,
            "memory not attached to " + std::string(engines_[i]->description().name) + ": " + attached.error().message);
      }
    }
    entry.is_known |= entry.by_engine[i] != nullptr;
  }
}

void MemoryMap::retire(Snapshot& next, Snapshot::iterator entry) {
  const std::shared_ptr<Attachment> leaving = *entry;
  next.erase(entry);
  publish(std::make_shared<Snapshot>(next));
  leaving->has_left.store(true, std::memory_order_seq_cst);
  std::erase_if(retired_, [](const auto& one) { return one.expired(); });
  if (leaving->users.load(std::memory_order_seq_cst) == 0) {
    leaving->by_engine.clear();  // now, whoever still looks at an old snapshot
  } else {
    retired_.push_back(leaving);
  }
}

bool MemoryMap::make_place(Snapshot& next, Region memory) {
  const std::byte* const end = memory.data + memory.size_bytes;
  const auto overlaps = [&](const auto& entry) { return entry->begin < end && entry->end > memory.data; };
  for (auto entry = next.begin(); entry != next.end();) {
    if (!overlaps(*entry)) {
      ++entry;
    } else if ((*entry)->on_use || (*entry)->has_left.load(std::memory_order_relaxed) || (*entry)->is_gone()) {
      const auto index = entry - next.begin();
      retire(next, entry);
      entry = next.begin() + index;
    } else {
      return false;
    }
  }
  return true;
}

void MemoryMap::insert(Snapshot& next, std::shared_ptr<Attachment> entry) {
  const auto place =
      std::find_if(next.begin(), next.end(), [&](const auto& after) { return after->begin >= entry->end; });
  next.insert(place, std::move(entry));
}

Status MemoryMap::attach(Region memory) {
  if (auto status = check_memory(memory); !status) return status;
  const std::scoped_lock changing(change_mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot());
  if (!make_place(*next, memory)) {
    return not_attachable("some of the memory is attached already",
                          "detach that first; pinned Buffers, and those of GPUs, are attached by their Context");
  }
  const bool on_host = memory.domain.host_accessible();
  auto entry = make(memory);
  attach_to_engines(*entry, memory, [&](const engine::Description& engine) {
    return on_host ? engine.host == engine::HostReach::any || engine.host == engine::HostReach::attached
                   : engine.reaches_device;
  });
  entry->held = memory::LiveBuffers::of_process().find(memory.data).held;
  insert(*next, std::move(entry));
  publish(std::move(next));
  return {};
}

MemoryMap::Snapshot::iterator MemoryMap::longest_unused(Snapshot& next) {
  auto oldest = next.end();
  for (auto entry = next.begin(); entry != next.end(); ++entry) {
    if (!(*entry)->on_use || (*entry)->users.load(std::memory_order_relaxed) != 0) continue;
    const auto uses = [](const auto& one) { return one->last_used.load(std::memory_order_relaxed); };
    if (oldest == next.end() || uses(*entry) < uses(*oldest)) oldest = entry;
  }
  return oldest;
}

// Others that nobody uses make room.
bool MemoryMap::charge(Attachment& entry, Snapshot& next) {
  const auto bytes = static_cast<std::uint64_t>(entry.end - entry.begin);
  for (const auto& budget : budgets_) {
    if (bytes > budget->limit_bytes()) return false;
    while (!budget->charge(bytes)) {
      const auto oldest = longest_unused(next);
      if (oldest == next.end()) return false;
      retire(next, oldest);
    }
    entry.budgets.push_back(budget);
  }
  return true;
}

MemoryMap::Entry MemoryMap::attach_on_use(Region allocation) {
  const std::scoped_lock changing(change_mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot());
  if (auto known = find(*next, allocation.data, allocation.size_bytes)) return known;  // meanwhile
  if (!make_place(*next, allocation)) return nullptr;
  const bool on_host = allocation.domain.host_accessible();
  auto entry = make(allocation);
  if (on_host && !charge(*entry, *next)) return nullptr;
  const auto count = std::count_if(next->begin(), next->end(), [](const auto& one) { return one->on_use; });
  if (count >= on_use_most) {
    const auto oldest = longest_unused(*next);
    if (oldest == next->end()) return nullptr;
    retire(*next, oldest);
  }
  attach_to_engines(*entry, allocation, [&](const engine::Description& engine) {
    return on_host ? engine.host == engine::HostReach::attached : engine.reaches_device;
  });
  if (!entry->is_known) entry->refund();
  entry->on_use = true;
  entry->last_used.store(count_of_uses(), std::memory_order_relaxed);
  insert(*next, entry);
  publish(std::move(next));
  return entry;
}

void Attachment::refund() {
  for (const auto& budget : budgets) budget->refund(static_cast<std::uint64_t>(end - begin));
  budgets.clear();
}

Attachment::~Attachment() {
  by_engine.clear();
  refund();
}

void MemoryMap::let_go_of_buffers() {
  if (empty()) return;
  Snapshot held;  // outlives the lock: a Buffer that ends with it may be attached here too
  const std::scoped_lock changing(change_mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot());
  for (const auto& entry : *next) {
    if (entry->held) held.push_back(entry);
  }
  std::erase_if(*next, [](const auto& entry) { return entry->held != nullptr; });
  publish(std::move(next));
}

void MemoryMap::publish(std::shared_ptr<const Snapshot> next) {
  const std::scoped_lock lock(snapshot_mutex_);
  empty_.store(next->empty(), std::memory_order_relaxed);
  snapshot_.swap(next);
  version_.store(new_version(), std::memory_order_release);
}

// Of all maps: a thread remembers what it found in one of them.
std::uint64_t MemoryMap::new_version() {
  static std::atomic<std::uint64_t> versions{0};
  return versions.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Memory that is freed is detached, whether there is memory or not: where there is none for a table without the entry,
// it stays there as one that nobody may use.
Status MemoryMap::detach(Region memory) {
  std::shared_ptr<const memory::Allocation> held;  // outlives the lock: a Buffer that ends may be attached here too
  const std::scoped_lock changing(change_mutex_);
  const auto present = snapshot();
  const auto place = std::find_if(present->begin(), present->end(), [&](const auto& entry) {
    return entry->begin == memory.data && entry->end == memory.data + memory.size_bytes &&
           !entry->has_left.load(std::memory_order_relaxed);
  });
  if (place == present->end()) {
    return or_out_of_memory([]() -> Status {
      return Error{Code::invalid_argument, 0, "detach: this memory was not attached",
                   "give the same address and size as to attach"};
    });
  }
  Attachment& removed = **place;
  removed.has_left.store(true, std::memory_order_seq_cst);
  removed.by_engine.clear();  // now, whoever still looks at an old snapshot
  held = std::move(removed.held);
  static_cast<void>(or_out_of_memory([&]() -> Status {
    auto next = std::make_shared<Snapshot>(*present);
    next->erase(next->begin() + (place - present->begin()));
    publish(std::move(next));
    return {};
  }));
  return {};
}

}  // namespace penstock::core
