#include "core/memory_map.h"

#include <algorithm>

#include "base/log.h"

namespace penstock::core {

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
  if (memory.data == nullptr || memory.size_bytes == 0) {
    return Error{Code::invalid_argument, 0, "attach: empty memory", "give the whole allocation"};
  }
  const std::scoped_lock changing(change_mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot());
  const auto* end = memory.data + memory.size_bytes;
  const auto overlaps = [&](const Entry& entry) { return entry.begin < end && entry.end > memory.data; };
  if (std::any_of(next->begin(), next->end(),
                  [&](const Entry& entry) { return overlaps(entry) && !entry.is_gone(); })) {
    return Error{Code::invalid_argument, 0, "attach: the memory overlaps memory that is attached already",
                 "detach that first"};
  }
  for (const Entry& gone : *next) {
    if (overlaps(gone)) detach_from_engines(gone);
  }
  std::erase_if(*next, overlaps);
  Entry entry{memory.data, end, attach_to_engines(memory)};
  if (!memory.domain.host_accessible()) {
    if (const auto driver = cuda::Driver::get()) {
      entry.driver = *driver;
      entry.buffer_id = entry.driver->buffer_id(memory.data);
    }
  }
  const auto place = std::find_if(next->begin(), next->end(), [&](const Entry& after) { return after.begin >= end; });
  next->insert(place, std::move(entry));
  const std::scoped_lock lock(snapshot_mutex_);
  snapshot_ = std::move(next);
  return {};
}

Status MemoryMap::detach(Region memory) {
  const std::scoped_lock changing(change_mutex_);
  auto next = std::make_shared<Snapshot>(*snapshot());
  const auto place = std::find_if(next->begin(), next->end(), [&](const Entry& entry) {
    return entry.begin == memory.data && entry.end == memory.data + memory.size_bytes;
  });
  if (place == next->end()) {
    return Error{Code::invalid_argument, 0, "detach: this memory was not attached",
                 "give the same address and size as to attach"};
  }
  const Entry removed = *place;
  next->erase(place);
  {
    const std::scoped_lock lock(snapshot_mutex_);
    snapshot_ = std::move(next);
  }
  detach_from_engines(removed);
  return {};
}

void MemoryMap::detach_from_engines(const Entry& entry) {
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    if (entry.keys[i]) engines_[i]->detach(entry.keys[i]);
  }
}

}  // namespace penstock::core
