#include "engines/uring/registry.h"

#include <unistd.h>

#include <algorithm>

namespace penstock::uring {
namespace {

// Takes the first `count` free slots in a row and returns the first of them.
template <std::size_t size>
std::optional<std::uint32_t> take_run(std::array<bool, size>& taken, std::uint32_t count) {
  const auto begin = std::search_n(taken.begin(), taken.end(), count, false);
  if (begin == taken.end()) return std::nullopt;
  std::fill_n(begin, count, true);
  return static_cast<std::uint32_t>(begin - taken.begin());
}

}  // namespace

Registry::Registry() : process_(::getpid()) {}

bool Registry::in_child() const {
  return ::getpid() != process_;
}

void Registry::join(Registered& ring) {
  const std::lock_guard lock(mutex_);
  rings_.push_back(&ring);
}

void Registry::leave(Registered& ring) {
  const std::lock_guard lock(mutex_);
  std::erase(rings_, &ring);
}

Slot Registry::add_store() {
  const std::lock_guard lock(mutex_);
  const auto index = take_run(store_taken_, 1);
  return index ? Slot{*index, next_registration_++} : Slot{};
}

void Registry::remove_store(Slot slot) {
  if (slot.registration == 0 || in_child()) return;
  const std::lock_guard lock(mutex_);
  for (Registered* ring : rings_) ring->forget_store(slot.index);
  store_taken_[slot.index] = false;
}

engine::MemoryKey Registry::add_memory(Region memory) {
  Memory added{memory.data, memory.size_bytes, 0};
  if (added.data == nullptr || added.size_bytes == 0 || added.size_bytes > piece_bytes * buffer_slots) return {};
  const std::lock_guard lock(mutex_);
  const auto first = take_run(buffer_taken_, added.pieces());
  if (!first) return {};
  added.registration = next_registration_++;
  memory_[*first] = added;
  return {*first + 1};
}

void Registry::remove_memory(engine::MemoryKey key) {
  if (!key || key.id > buffer_slots || in_child()) return;
  const std::uint32_t first = key.id - 1;
  const std::lock_guard lock(mutex_);
  for (std::uint32_t index = first; index < first + memory_[first].pieces(); ++index) {
    for (Registered* ring : rings_) ring->forget_buffer(index);
    buffer_taken_[index] = false;
  }
  memory_[first] = {};
}

std::optional<Piece> Registry::find(engine::MemoryKey key, const std::byte* data, std::uint64_t length) const {
  if (!key || key.id > buffer_slots) return std::nullopt;
  const Memory& memory = memory_[key.id - 1];
  if (data < memory.data) return std::nullopt;
  const auto offset = static_cast<std::uint64_t>(data - memory.data);
  if (offset >= memory.size_bytes) return std::nullopt;
  const std::uint64_t number = offset / piece_bytes;
  const std::uint64_t begin = number * piece_bytes;
  const std::uint64_t size = std::min(piece_bytes, memory.size_bytes - begin);
  if (length > begin + size - offset) return std::nullopt;
  return Piece{{key.id - 1 + static_cast<std::uint32_t>(number), memory.registration}, memory.data + begin, size};
}

}  // namespace penstock::uring
