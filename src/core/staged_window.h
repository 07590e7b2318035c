// StagedWindow: how much of what passes through staging memory a lane has at the disk. What goes past the page cache on
// its way elsewhere should take as little memory as keeps the disk busy: memory that is used again soon is still in the
// processor's caches, and writing it anew costs bandwidth that the disk or its host needs. (On a virtual disk of 4.5
// GB/s, 128 MiB in turn cost a fifth of the speed of reading, and 4 GiB more than half.)
//
// It looks for the shortest queue: latency well above the shortest that was seen means that operations wait for each
// other, and the window shrinks; latency close to it means that the disk could do more, and the window grows.
//
// Thread safety: its lane's. Lifetime: its lane's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace penstock::core {

// The least that operations of a length have taken, by all lanes of a Context. A lane alone can't know it: where all
// begin at once, the last finds the queue of the others at its first operation. Never forgotten: where it is too short
// for the disk of today, lanes have little in flight, which is enough for local disks.
//
// Thread safety: any thread.
class ShortestLatency {
 public:
  // Takes another into account.
  Duration with(std::uint64_t bytes, Duration latency);

 private:
  // By the logarithm of the length; zero: none yet.
  std::array<std::atomic<Duration>, 64> shortest_{};
};

class StagedWindow {
 public:
  static constexpr std::uint64_t least_piece_bytes = 256 << 10;

  // `chunk_bytes`: the longest operation; `least_bytes` and `most_bytes`: of the window.
  StagedWindow(std::uint64_t chunk_bytes, std::uint64_t least_bytes, std::uint64_t most_bytes);

  // How long an operation should be.
  std::uint64_t piece_bytes() const { return piece_bytes_; }
  // Whether another operation may begin.
  bool has_room() const { return in_flight_bytes_ < window_bytes_; }
  std::uint64_t window_bytes() const { return window_bytes_; }

  // Until its memory may be used again: what is being copied elsewhere still counts.
  void begin(std::uint64_t bytes) { in_flight_bytes_ += bytes; }
  void end(std::uint64_t bytes) { in_flight_bytes_ -= bytes; }
  // Of an operation that moved all its bytes; `shortest`: the least that any lane has seen.
  void note(std::uint64_t bytes, Duration latency, Duration shortest);

 private:
  void adapt(Duration mean, Duration shortest);
  void set_window(std::uint64_t bytes);

  const std::uint64_t chunk_bytes_;
  const std::uint64_t least_bytes_;
  const std::uint64_t most_bytes_;
  std::uint64_t window_bytes_ = 0;
  std::uint64_t piece_bytes_ = 0;
  std::uint64_t in_flight_bytes_ = 0;
  // Of operations of the present length, since the window last changed.
  std::uint64_t noted_ = 0;
  Duration latency_sum_{};
  bool found_queue_ = false;  // from then on the window grows by steps
};

}  // namespace penstock::core
