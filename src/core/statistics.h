// LaneStatistics: what one lane counts. StatisticsHub: all lanes of a Context together.
//
// Counters only ever grow. A snapshot adds up the lanes; a reset remembers the present sums and later snapshots
// subtract them, so lanes never lock and nothing is lost while they run.
//
// Thread safety: one thread at a time records in a LaneStatistics; StatisticsHub from any thread.
// Lifetime: a LaneStatistics may outlive its hub. What an ended lane counted stays; the next lane counts on from there.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "core/histogram.h"
#include "penstock/statistics.h"

namespace penstock::core {

// Bandwidth of one engine and route over all lanes. Touched once per batch of completions.
class BandwidthMeter {
 public:
  // `bytes` arrived at `now`, by operations of which the longest took `longest_ns`.
  void add(std::uint64_t bytes, std::uint64_t longest_ns, TimePoint now);
  // Time in which there was work, as the union of the lanes' batches; a batch that began before one that was already
  // added and ended after it counts from the end of that one.
  std::uint64_t busy_ns() const { return busy_ns_.load(std::memory_order_relaxed); }
  // Bytes a second in the best tenth of a second since the last forget_peak().
  double peak() const;
  void forget_peak();

 private:
  std::atomic<std::uint64_t> window_{0};  // the number of the present window above its bytes: one word, so one swap
  std::atomic<std::uint64_t> peak_bytes_{0};
  std::atomic<std::uint64_t> busy_until_ns_{0};
  std::atomic<std::uint64_t> busy_ns_{0};
};

class LaneStatistics {
 public:
  LaneStatistics(std::size_t engine_count, std::shared_ptr<std::vector<BandwidthMeter>> meters);
  ~LaneStatistics();
  LaneStatistics(const LaneStatistics&) = delete;
  LaneStatistics& operator=(const LaneStatistics&) = delete;

  // REQUIRES: engine < the number of engines of the hub.
  void record(std::size_t engine, Route route, std::uint64_t bytes, std::uint64_t latency_ns, bool ok);
  // A whole request, by a caller that makes one after another.
  void record_call(std::size_t engine, Route route, std::uint64_t bytes, std::uint64_t latency_ns);
  // Bytes that were made of stored ones.
  void record_made(std::uint64_t stored_bytes, std::uint64_t made_bytes) {
    stored_bytes_.add(stored_bytes);
    made_bytes_.add(made_bytes);
  }
  // What engines have of the lane's, from now on.
  void set_in_flight(std::uint64_t operations, std::uint64_t bytes) {
    operations_in_flight_.store(operations, std::memory_order_relaxed);
    bytes_in_flight_.store(bytes, std::memory_order_relaxed);
  }
  // Once per batch of completions: folds its bytes into the bandwidth that all lanes share.
  void publish(TimePoint now);

 private:
  friend class StatisticsHub;

  // One writer, so a load and a store do; readers see each counter whole.
  class Counter {
   public:
    void add(std::uint64_t amount) { value_.store(get() + amount, std::memory_order_relaxed); }
    std::uint64_t get() const { return value_.load(std::memory_order_relaxed); }

   private:
    std::atomic<std::uint64_t> value_{0};
  };
  struct alignas(64) Cell {
    Counter bytes;
    Counter operations;
    Counter failed;
    Counter latency_ns;
    std::array<Counter, Histogram::bucket_count> latencies;
    // Of the present batch; the writer's alone.
    std::uint64_t batch_bytes = 0;
    std::uint64_t batch_longest_ns = 0;
    bool in_batch = false;
  };

  // Made when it is first recorded to: most engines and routes are never used. Null where there was no memory for it.
  Cell* ensure(std::size_t index);

  std::vector<std::atomic<Cell*>> cells_;  // by engine, then route; owned
  std::vector<std::size_t> batch_;         // cells touched since the last publish; never grows past its reserve
  std::shared_ptr<std::vector<BandwidthMeter>> meters_;  // shared with the hub and its other lanes
  std::atomic<bool> taken_{false};                       // a lane records here
  Counter stored_bytes_;
  Counter made_bytes_;
  Counter requests_;
  std::atomic<std::uint64_t> operations_in_flight_{0};
  std::atomic<std::uint64_t> bytes_in_flight_{0};
};

class StatisticsHub {
 public:
  explicit StatisticsHub(std::vector<std::string> engine_names);

  // Counters for one lane, to be dropped when it ends.
  std::shared_ptr<LaneStatistics> add_lane();
  void request_ended(bool ok);
  // A request that no lane has seen, and that was done. Allocates nothing but what counts the first of its kind.
  void count_call(std::size_t engine, Route route, std::uint64_t bytes, std::uint64_t latency_ns, TimePoint now);
  // By no engine of ours, but by the kernel's mmap, which is named as one.
  void count_mapped(std::uint64_t bytes, double seconds);
  // Everything but what only a Context knows: pinned, quarantined and unfreed bytes, lanes replaced.
  Statistics snapshot() const;
  void reset();

 private:
  struct Totals {
    std::uint64_t bytes = 0;
    std::uint64_t operations = 0;
    std::uint64_t failed = 0;
    std::uint64_t latency_ns = 0;
    std::uint64_t busy_ns = 0;
    Histogram latencies;

    void subtract(const Totals& earlier);
  };
  // Counters that callers share, a few threads each.
  struct alignas(64) Shard {
    std::atomic<bool> is_busy{false};  // guards what follows
    std::shared_ptr<LaneStatistics> counters;
    TimePoint published;
  };
  static constexpr std::size_t shard_count = 16;
  Shard& hold_shard() const;
  void publish_shards() const;
  std::uint64_t requests_locked() const;

  struct Made {
    std::uint64_t stored_bytes = 0;
    std::uint64_t made_bytes = 0;
  };
  std::size_t cell_count() const { return engine_names_.size() * route_count; }
  Totals totals_locked(std::size_t cell) const;
  Made made_locked() const;

  const std::vector<std::string> engine_names_;  // with that one, last
  const std::shared_ptr<std::vector<BandwidthMeter>> meters_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> requests_failed_{0};
  mutable std::array<Shard, shard_count> shards_;

  mutable std::mutex mutex_;  // guards what follows; lanes never take it
  std::vector<std::shared_ptr<LaneStatistics>> lanes_;
  std::vector<Totals> baseline_;
  std::uint64_t baseline_requests_ = 0;
  std::uint64_t baseline_requests_failed_ = 0;
  Made baseline_made_;
  TimePoint since_ = Clock::now();
};

}  // namespace penstock::core
