// Flow: how many bytes of a store, or of all stores on one device, may be in flight past the page cache. It is learnt
// from how the store answers; LaneFlow is one lane's share of it.
//
// As little as keeps the store busy is best: what is in flight can't be recalled, and memory that is used again soon is
// still in the processor's caches. (On a virtual disk of 4.5 GB/s, 128 MiB of staging memory in turn cost a fifth of
// the speed of reading, and 4 GiB more than half.) But a store that is far away and wide needs its whole bandwidth
// times its latency in flight. Both are found by the same rule. Latency well above the shortest that was seen means
// that operations wait for each other, unless more in flight has just brought more bandwidth: then the store only
// answers unevenly. Where they don't wait, the window grows, twofold until the first queue was found; where they do, it
// shrinks; and where shrinking costs bandwidth, that is undone.
//
// Thread safety: Flow any thread; LaneFlow its lane's. Lifetime: a Flow is shared by the stores of one device.
#pragma once

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "penstock/request.h"

namespace penstock::core {

struct FlowLimits {
  std::uint64_t least_bytes = 8 << 20;  // where it begins; less only where that much takes too long to come home
  std::uint64_t most_bytes = 512 << 20;
  std::uint64_t chunk_bytes = 1 << 20;  // of a usual operation
  std::uint32_t lanes = 1;
  std::uint32_t operations = 64;                             // that a lane can have in flight
  Duration queue_time_most = std::chrono::milliseconds(50);  // that operations should wait for each other
};

class Flow {
 public:
  static constexpr std::uint64_t least_piece_bytes = 256 << 10;
  // Shorter operations are limited by their number alone.
  static constexpr std::uint64_t counted_from_bytes = 64 << 10;

  explicit Flow(const FlowLimits& limits);

  std::uint64_t window_bytes() const { return window_bytes_.load(std::memory_order_relaxed); }
  std::uint64_t lane_bytes() const { return window_bytes() / limits_.lanes; }
  // Of one operation on the way through staging memory: several fit a lane's share, so that one is copied while others
  // are at the store. Longer ones for wider windows: a copy engine likes them better.
  std::uint64_t staged_piece_bytes() const;
  // Of one that goes straight to its place: as long as it takes to fill the window with the operations there are.
  std::uint64_t plain_piece_bytes() const;

  // An operation moved all its bytes.
  void note(std::uint64_t bytes, Duration latency, TimePoint now);
  // A lane had more to send than its share allows.
  void note_full() { full_.store(true, std::memory_order_relaxed); }

 private:
  // What was seen since the last look, of what began after the window last changed.
  struct Look {
    TimePoint begun;
    TimePoint last;
    std::uint64_t bytes = 0;
    std::uint32_t operations = 0;
    Duration latency{};   // all of it
    Duration shortest{};  // as long as they would have taken without a queue
  };

  // How it went with a window.
  struct Seen {
    std::uint64_t window_bytes = 0;  // 0: nothing was seen
    double bandwidth = 0;
    double bytes_in_flight = 0;
  };
  enum class Change : std::uint8_t {
    none,
    more_brought_more,
    more_brought_nothing,
    less_brought_less,
    less_cost_nothing
  };

  static constexpr std::uint32_t first_looks_between_tries = 8;

  void adapt(TimePoint now);
  Change change_since_last(const Seen& now) const;
  void set_window(std::uint64_t bytes);
  Duration shortest_with(std::uint64_t bytes, Duration latency);

  const FlowLimits limits_;
  alignas(64) std::atomic<std::uint64_t> window_bytes_;
  std::atomic<bool> full_{false};
  alignas(64) std::mutex mutex_;         // guards what follows; who finds it taken goes on without
  std::array<Duration, 64> shortest_{};  // by the logarithm of the length; zero: none yet
  Look look_;
  TimePoint changed_;
  bool found_queue_ = false;    // from then on the window grows by steps
  Seen seen_;                   // before what is in flight last changed noticeably
  bool came_back_ = false;      // to the window before the last, which brought more
  std::uint32_t patience_ = 0;  // looks without shrinking: the last time cost bandwidth
  std::uint32_t next_patience_ = 0;
  double patient_bandwidth_ = 0;  // when it last began to be patient
  std::uint32_t looks_ = 0;       // since more was last tried
  std::uint32_t looks_between_tries_ = first_looks_between_tries;
  bool tries_more_ = false;
};

class LaneFlow {
 public:
  // `operations`: the most that are in flight. `shares`: of how many lanes it has the window.
  explicit LaneFlow(std::uint32_t operations, std::uint32_t shares = 1) : shares_(shares) {
    in_flight_.reserve(operations);
  }

  // Whether another operation may begin: the first always may, or nobody would ever look again.
  bool has_room(Flow& flow);
  void begin(Flow& flow, std::uint64_t bytes);
  // When its memory may be used again: what is being copied elsewhere still counts.
  void end(Flow& flow, std::uint64_t bytes);

 private:
  struct InFlight {
    Flow* flow = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t operations = 0;
  };
  std::vector<InFlight>::iterator find(const Flow& flow);

  const std::uint32_t shares_;
  std::vector<InFlight> in_flight_;  // of those that have some; rarely more than one or two
};

// The flows of a Context.
class Flows {
 public:
  explicit Flows(const FlowLimits& limits) : limits_(limits) {}
  // What is learnt of reading from a device, or of writing to it. Empty `device`: a Flow of the store's own.
  struct Key {
    std::size_t engine = 0;
    std::string device;  // as StoreInfo names it
    Direction direction = Direction::read;

    friend auto operator<=>(const Key&, const Key&) = default;
  };
  std::shared_ptr<Flow> of(const Key& key) const;

 private:
  const FlowLimits limits_;
  mutable std::mutex mutex_;
  mutable std::map<Key, std::shared_ptr<Flow>> known_;  // shared with the stores
};

}  // namespace penstock::core
