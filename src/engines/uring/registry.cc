#include "engines/uring/registry.h"

#include <algorithm>

namespace penstock::uring {
namespace {

// The first of the first `count` free slots in a row.
template <std::size_t size>
std::optional<std::uint32_t> find_run(const std::array<bool, size>& taken, std::uint32_t count) {
  const auto begin = std::search_n(taken.begin(), taken.end(), count, false);
  if (begin == taken.end()) return std::nullopt;
  return static_cast<std::uint32_t>(begin - taken.begin());
}

}  // namespace

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
  const auto index = find_run(store_taken_, 1);
  if (!index) return {};
  store_taken_[*index] = true;
  return {*index, next_registration_++};
}

void Registry::remove_store(Slot slot) {
  if (slot.registration == 0 || in_child()) return;
  const std::lock_guard lock(mutex_);
  for (Registered* ring : rings_) ring->forget_store(slot.index);
  store_taken_[slot.index] = false;
}

Result<std::unique_ptr<engine::Attached>> Registry::attach(Region memory) {
  std::unique_ptr<engine::Attached> none;
  if (!memory.domain.host_accessible() || memory.data == nullptr || memory.size_bytes == 0) return none;
  if (memory.size_bytes > piece_bytes * buffer_slots) return none;
  const std::uint32_t slots = AttachedMemory::slots_for(memory.size_bytes);
  const std::lock_guard lock(mutex_);
  const auto first = find_run(buffer_taken_, slots);
  if (!first) return none;
  std::unique_ptr<engine::Attached> attached =
      std::make_unique<AttachedMemory>(*this, memory, Slot{*first, next_registration_++});
  std::fill_n(buffer_taken_.begin() + *first, slots, true);
  return attached;
}

void Registry::remove(const AttachedMemory& memory) {
  if (in_child()) return;
  const std::lock_guard lock(mutex_);
  for (std::uint32_t index = memory.first_slot(); index < memory.first_slot() + memory.slots(); ++index) {
    for (Registered* ring : rings_) ring->forget_buffer(index);
    buffer_taken_[index] = false;
  }
}

std::optional<Piece> AttachedMemory::find(const std::byte* data, std::uint64_t length) const {
  if (data < memory_.data) return std::nullopt;
  const auto offset = static_cast<std::uint64_t>(data - memory_.data);
  if (offset >= memory_.size_bytes) return std::nullopt;
  const std::uint64_t number = offset / piece_bytes;
  const std::uint64_t begin = number * piece_bytes;
  const std::uint64_t size = std::min<std::uint64_t>(piece_bytes, memory_.size_bytes - begin);
  if (length > begin + size - offset) return std::nullopt;
  return Piece{{first_.index + static_cast<std::uint32_t>(number), first_.registration}, memory_.data + begin, size};
}

}  // namespace penstock::uring
