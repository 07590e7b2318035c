#include "core/held_memory.h"

#include <iterator>
#include <utility>

namespace penstock::core {

const HeldMemory::Place* HeldMemory::find_known(const std::byte* data) const {
  if (first_.contains(data)) return &first_;
  const auto after = others_.upper_bound(reinterpret_cast<std::uintptr_t>(data));
  if (after == others_.begin()) return nullptr;
  const Place& before = std::prev(after)->second;
  return before.contains(data) ? &before : nullptr;
}

const HeldMemory::Place& HeldMemory::look_up(const std::byte* data) {
  if (const Place* known = find_known(data)) return *known;
  if (outside_.contains(data)) return outside_;
  Place found = memory::LiveBuffers::of_process().find(data);
  if (!found.held) return outside_ = std::move(found);
  if (!first_.held) return first_ = std::move(found);
  const std::uintptr_t begin = found.begin;
  return others_.emplace(begin, std::move(found)).first->second;
}

HeldMemory::Holder HeldMemory::holder_of(const std::byte* data) const {
  const Place* known = find_known(data);
  return known != nullptr ? known->held : nullptr;
}

void HeldMemory::let_go() {
  here_ = &outside_;
  outside_ = {};
  first_ = {};
  others_.clear();
}

}  // namespace penstock::core
