#include "core/staged_window.h"

#include <algorithm>
#include <bit>

namespace penstock::core {

namespace {

// One at the disk, one that has just come back.
constexpr std::uint64_t pieces_at_least = 2;
// Of a window's bytes: how many should be waiting for others at the disk. Fewer: it may be idle now and then.
constexpr double queue_at_least = 0.3;
constexpr double queue_at_most = 0.6;
// Windows that come back before the next look, so that one slow operation means nothing.
constexpr std::uint64_t windows_between_looks = 4;

}  // namespace

Duration ShortestLatency::with(std::uint64_t bytes, Duration latency) {
  std::atomic<Duration>& place = shortest_[static_cast<std::size_t>(std::bit_width(bytes | 1) - 1)];
  Duration shortest = place.load(std::memory_order_relaxed);
  while (shortest == Duration::zero() || latency < shortest) {
    if (place.compare_exchange_weak(shortest, latency, std::memory_order_relaxed)) return latency;
  }
  return shortest;
}

StagedWindow::StagedWindow(std::uint64_t chunk_bytes, std::uint64_t least_bytes, std::uint64_t most_bytes)
    : chunk_bytes_(chunk_bytes), least_bytes_(least_bytes), most_bytes_(std::max(least_bytes, most_bytes)) {
  set_window(least_bytes);
}

// Longer pieces for wider windows: a copy engine likes them better.
void StagedWindow::set_window(std::uint64_t bytes) {
  window_bytes_ = std::clamp(bytes, least_bytes_, most_bytes_);
  piece_bytes_ =
      std::min(chunk_bytes_, std::max(least_piece_bytes, std::bit_floor(window_bytes_ / pieces_at_least / 2)));
  noted_ = 0;
  latency_sum_ = {};
}

void StagedWindow::note(std::uint64_t bytes, Duration latency, Duration shortest) {
  if (bytes != piece_bytes_) return;
  latency_sum_ += latency;
  ++noted_;
  if (noted_ * piece_bytes_ >= windows_between_looks * window_bytes_) {
    adapt(latency_sum_ / static_cast<Duration::rep>(noted_), shortest);
  }
}

void StagedWindow::adapt(Duration mean, Duration shortest) {
  const double queued = 1 - static_cast<double>(shortest.count()) / static_cast<double>(mean.count());
  if (queued < queue_at_least) {
    set_window(found_queue_ ? window_bytes_ + piece_bytes_ : window_bytes_ * 2);
  } else {
    found_queue_ = true;
    set_window(queued > queue_at_most ? window_bytes_ - window_bytes_ / 4 : window_bytes_);
  }
}

}  // namespace penstock::core
