#include "core/held_memory.h"

#include <iterator>
#include <utility>

namespace penstock::core {

const HeldMemory::Place* HeldMemory::find_known(const std::byte* data) const {
  if (first_.contains(data)) return &first_;
  if (!others_) return nullptr;
  const auto after = others_->upper_bound(reinterpret_cast<std::uintptr_t>(data));
  if (after == others_->begin()) return nullptr;
  const Place& before = std::prev(after)->second;
  return before.contains(data) ? &before : nullptr;
}

const HeldMemory::Extent& HeldMemory::look_up(const std::byte* data) {
  if (const Place* known = find_known(data)) return *known;
  if (outside_.contains(data)) return outside_;
  Place found = memory::LiveBuffers::of_process().find(data);
  if (!found.held) return outside_ = found;
  if (!first_.held) return first_ = std::move(found);
  if (!others_) others_ = std::make_unique<Places>();
  const std::uintptr_t begin = found.begin;
  return others_->emplace(begin, std::move(found)).first->second;
}

HeldMemory::Holder HeldMemory::holder_of(const std::byte* data) const {
  const Place* known = find_known(data);
  return known != nullptr ? known->held : nullptr;
}

memory::FreedLater::List HeldMemory::let_go_of_all() {
  memory::FreedLater later;
  first_ = {};
  others_.reset();
  return later.take();
}

}  // namespace penstock::core
