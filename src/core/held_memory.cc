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

std::vector<HeldMemory::Holder> HeldMemory::let_go() {
  std::vector<Holder> last;
  const auto keep_last = [&last](Place& place) {
    const bool is_last = place.held && place.held.use_count() == 1;
    if (is_last && place.held->region().domain != Domain::host()) last.push_back(std::move(place.held));
  };
  keep_last(first_);
  for (auto& [begin, place] : others_) keep_last(place);
  here_ = &outside_;
  outside_ = {};
  first_ = {};
  others_.clear();
  return last;
}

}  // namespace penstock::core
