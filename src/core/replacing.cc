#include "core/replacing.h"

#include <algorithm>
#include <new>

namespace penstock::core {
namespace {

constexpr std::size_t stretches_most = 4096;

}  // namespace

void Replacing::failed(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const std::scoped_lock lock(mutex_);
  const auto first = std::ranges::lower_bound(stretches_, begin, {}, &Stretch::end);
  const auto last = std::ranges::upper_bound(first, stretches_.end(), end, {}, &Stretch::begin);
  const auto at = static_cast<std::size_t>(first - stretches_.begin());
  if (first == last) return put(at, {begin, end});
  *first = {std::min(begin, first->begin), std::max(end, (last - 1)->end)};
  stretches_.erase(first + 1, last);
}

void Replacing::written(std::uint64_t begin, std::uint64_t end) {
  if (begin >= end) return;
  const std::scoped_lock lock(mutex_);
  auto at = std::ranges::upper_bound(stretches_, begin, {}, &Stretch::end);
  while (at != stretches_.end() && at->begin < end) {
    const Stretch was = *at;
    if (begin <= was.begin && was.end <= end) {
      at = stretches_.erase(at);
    } else if (was.begin < begin && end < was.end) {
      at->end = begin;
      return put(static_cast<std::size_t>(at - stretches_.begin()) + 1, {end, was.end});
    } else {
      (was.begin < begin ? at->end : at->begin) = was.begin < begin ? begin : end;
      ++at;
    }
  }
}

std::optional<Replacing::Stretch> Replacing::unwritten() const {
  const std::scoped_lock lock(mutex_);
  if (is_lost_) return Stretch{0, UINT64_MAX};
  if (stretches_.empty()) return std::nullopt;
  return stretches_.front();
}

// Where there is no room for one more, the one before or behind it is made longer.
void Replacing::put(std::size_t at, Stretch stretch) {
  if (stretches_.size() < stretches_most) {
    try {
      stretches_.insert(stretches_.begin() + static_cast<std::ptrdiff_t>(at), stretch);
      return;
    } catch (const std::bad_alloc&) {
    }
  }
  if (stretches_.empty()) {
    is_lost_ = true;
  } else if (at != 0) {
    stretches_[at - 1].end = stretch.end;
  } else {
    stretches_.front().begin = stretch.begin;
  }
}

}  // namespace penstock::core
