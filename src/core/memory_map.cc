#include "core/memory_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "memory/live_buffers.h"

namespace penstock::core {

namespace {

Error not_attachable(std::string what, std::string hint = "give memory that is yours as long as it is attached") {
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
                          "find_cuda_region tells the device of a pointer");
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

}  // namespace

std::shared_ptr<const MemoryMap::Snapshot> MemoryMap::snapshot() const {
  const std::scoped_lock lock(snapshot_mutex_);
  return snapshot_;
}

const MemoryMap::Entry* MemoryMap::find(const Snapshot& snapshot, const std::byte* data, std::size_t size) {
  const auto after =
      std::upper_bound(snapshot.begin(), snapshot.end(), data,
                       [](const std::byte* address, const Entry& entry) { return address < entry.begin; });
  if (after == snapshot.begin()) return nullptr;
  const Entry& entry = *std::prev(after);
  if (data >= entry.end || size > static_cast<std::size_t>(entry.end - data)) return nullptr;
  if (entry.driver == nullptr) return &entry;
  const bool has_key = std::any_of(entry.keys.begin(), entry.keys.end(), [](auto key) { return bool{key}; });
  return has_key && entry.is_gone() ? nullptr : &entry;
}

std::vector<engine::MemoryKey> MemoryMap::attach_to_engines(Region memory) {
  std::vector<engine::MemoryKey> keys(engines_.size());
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i] == nullptr) continue;
    if (engines_[i]->description().reaches_device == memory.domain.host_accessible()) continue;
    if (is_used_ && !is_used_(i)) continue;
    auto key = engines_[i]->attach(memory);
    // An engine that can't attach still reaches the memory, only slower.
    if (key) {
      keys[i] = *key;
    } else {
      log(LogLevel::info,
          "memory not attached to " + std::string(engines_[i]->description().name) + ": " + key.error().message);
    }
  }
  return keys;
}

Status MemoryMap::attach(Region memory) {
  if (auto status = check_memory(memory); !status) return status;
  const std::scoped_lock changing(change_mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot());
  const auto* end = memory.data + memory.size_bytes;
  const auto overlaps = [&](const Entry& entry) { return entry.begin < end && entry.end > memory.data; };
  if (std::any_of(next->begin(), next->end(),
                  [&](const Entry& entry) { return overlaps(entry) && !entry.is_gone(); })) {
    return not_attachable("some of the memory is attached already",
                          "detach that first; pinned Buffers, and those of GPUs, are attached by their Context");
  }
  for (const Entry& gone : *next) {
    if (overlaps(gone)) detach_from_engines(gone);
  }
  std::erase_if(*next, overlaps);
  Entry entry{memory.data, end, attach_to_engines(memory)};
  entry.held = memory::LiveBuffers::of_process().find(memory.data).held;
  if (!memory.domain.host_accessible()) {
    entry.driver = cuda::Driver::get().value();
    entry.buffer_id = entry.driver->buffer_id(memory.data);
  }
  const auto place = std::find_if(next->begin(), next->end(), [&](const Entry& after) { return after.begin >= end; });
  next->insert(place, std::move(entry));
  publish(std::move(next));
  return {};
}

void MemoryMap::publish(std::shared_ptr<const Snapshot> next) {
  const std::scoped_lock lock(snapshot_mutex_);
  empty_.store(next->empty(), std::memory_order_relaxed);
  snapshot_.swap(next);
}

Status MemoryMap::detach(Region memory) {
  std::optional<Entry> removed;  // outlives the lock: a Buffer that ends with it may be attached here too
  const std::scoped_lock changing(change_mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot());
  const auto place = std::find_if(next->begin(), next->end(), [&](const Entry& entry) {
    return entry.begin == memory.data && entry.end == memory.data + memory.size_bytes;
  });
  if (place == next->end()) {
    return Error{Code::invalid_argument, 0, "detach: this memory was not attached",
                 "give the same address and size as to attach"};
  }
  removed = *place;
  next->erase(place);
  publish(std::move(next));
  detach_from_engines(*removed);
  return {};
}

void MemoryMap::detach_from_engines(const Entry& entry) {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (entry.keys[i]) engines_[i]->detach(entry.keys[i]);
  }
}

}  // namespace penstock::core
