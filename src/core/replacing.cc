#include "core/replacing.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace penstock::core {

void Replacing::failed(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const std::scoped_lock lock(mutex_);
  auto at = stretches_.upper_bound(begin);
  if (at != stretches_.begin() && std::prev(at)->second >= begin) --at;
  while (at != stretches_.end() && at->first <= end) {
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = stretches_.erase(at);
  }
  try {
    stretches_.emplace_hint(at, begin, end);
  } catch (const std::bad_alloc&) {
    is_spoilt_ = true;
  }
}

void Replacing::written(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const std::scoped_lock lock(mutex_);
  auto at = stretches_.upper_bound(begin);
  if (at != stretches_.begin() && std::prev(at)->second > begin) --at;
  while (at != stretches_.end() && at->first < end) {
    const Stretch was{at->first, at->second};
    try {
      if (was.end > end) stretches_.emplace(end, was.end);
    } catch (const std::bad_alloc&) {
      is_spoilt_ = true;
    }
    if (was.begin < begin) at->second = begin;
    at = was.begin < begin ? std::next(at) : stretches_.erase(at);
    if (was.end > end) return;
  }
}

std::optional<Replacing::Stretch> Replacing::unwritten() const {
  const std::scoped_lock lock(mutex_);
  if (stretches_.empty()) return std::nullopt;
  return Stretch{stretches_.begin()->first, stretches_.begin()->second};
}

}  // namespace penstock::core
