#include "cuda/stream_pool.h"

#include <algorithm>

#include "cuda/quiet.h"

namespace penstock::cuda {

CuResult StreamPool::add(const RelaxedApi& api) {
  CuStream stream = nullptr;
  const CuResult result = api.stream_create(&stream, cu_stream_non_blocking, 0);
  if (result == cu_success) entries_.push_back({stream, 0});
  return result;
}

CuResult StreamPool::fill(const RelaxedApi& api) {
  const std::scoped_lock lock(mutex_);
  entries_.reserve(streams_most);
  CuResult result = cu_success;
  const auto add_up_to = [&](std::size_t count) {
    while (entries_.size() < count && result == cu_success) result = add(api);
  };
  if (!Quiet::of_process().run([&] { add_up_to(first_streams); })) add_up_to(1);
  return entries_.empty() ? result : cu_success;
}

CuStream StreamPool::take(const RelaxedApi& api) {
  const std::scoped_lock lock(mutex_);
  const auto fewest = [this] {
    return std::min_element(entries_.begin(), entries_.end(),
                            [](const Entry& a, const Entry& b) { return a.users < b.users; });
  };
  if (fewest()->users != 0 && entries_.size() < streams_most) {
    Quiet::of_process().run([&] { add(api); });
  }
  const auto taken = fewest();
  ++taken->users;
  return taken->stream;
}

void StreamPool::give_back(CuStream stream) {
  const std::scoped_lock lock(mutex_);
  const auto given =
      std::find_if(entries_.begin(), entries_.end(), [stream](const Entry& entry) { return entry.stream == stream; });
  if (given != entries_.end()) --given->users;
}

}  // namespace penstock::cuda
