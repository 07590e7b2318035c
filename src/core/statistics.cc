#include "core/statistics.h"

#include <algorithm>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/out_of_memory.h"

namespace penstock::core {
namespace {

constexpr double seconds_per_ns = 1e-9;
constexpr std::uint64_t window_ns = 100'000'000;
constexpr unsigned window_byte_bits = 40;  // a window of 1.1 TB; its number repeats after 19 days
// Of callers' counters: how long they may hold back what the bandwidth is made of.
constexpr Duration publish_period = std::chrono::milliseconds(1);
constexpr int shard_tries = 10'000;
constexpr std::uint64_t latest_windows = 16;
constexpr std::uint64_t window_byte_mask = (std::uint64_t{1} << window_byte_bits) - 1;

std::uint64_t nanoseconds(TimePoint time) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

void raise_to(std::atomic<std::uint64_t>& highest, std::uint64_t value) {
  std::uint64_t seen = highest.load(std::memory_order_relaxed);
  while (seen < value && !highest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

std::vector<std::string> with_mmap(std::vector<std::string> engine_names) {
  engine_names.emplace_back("mmap");
  return engine_names;
}

}  // namespace

void BandwidthMeter::add(std::uint64_t bytes, std::uint64_t longest_ns, TimePoint now) {
  const std::uint64_t now_ns = nanoseconds(now);

  const std::uint64_t number = now_ns / window_ns << window_byte_bits;
  std::uint64_t old = window_.load(std::memory_order_relaxed);
  std::uint64_t fresh = 0;
  do {
    // A lane that comes a little late adds to the present window: a window never begins twice.
    const bool present = (old & ~window_byte_mask) - number <= latest_windows << window_byte_bits;
    const std::uint64_t before = present ? old & window_byte_mask : 0;
    fresh = (present ? old & ~window_byte_mask : number) | std::min(before + bytes, window_byte_mask);
  } while (!window_.compare_exchange_weak(old, fresh, std::memory_order_relaxed));
  raise_to(peak_bytes_, fresh & window_byte_mask);

  std::uint64_t until = busy_until_ns_.load(std::memory_order_relaxed);
  while (until < now_ns) {
    if (!busy_until_ns_.compare_exchange_weak(until, now_ns, std::memory_order_relaxed)) continue;
    const std::uint64_t begin = std::max(until, now_ns - std::min(longest_ns, now_ns));
    busy_ns_.fetch_add(now_ns - begin, std::memory_order_relaxed);
    break;
  }
}

double BandwidthMeter::peak() const {
  return static_cast<double>(peak_bytes_.load(std::memory_order_relaxed)) / (window_ns * seconds_per_ns);
}

void BandwidthMeter::forget_peak() {
  window_.fetch_and(~window_byte_mask, std::memory_order_relaxed);
  peak_bytes_.store(0, std::memory_order_relaxed);
}

LaneStatistics::LaneStatistics(std::size_t engine_count, std::shared_ptr<std::vector<BandwidthMeter>> meters)
    : cells_(engine_count * route_count), meters_(std::move(meters)) {
  batch_.reserve(engine_count * route_count);
}

LaneStatistics::~LaneStatistics() {
  for (const auto& cell : cells_) delete cell.load(std::memory_order_relaxed);
}

LaneStatistics::Cell* LaneStatistics::ensure(std::size_t index) {
  Cell* cell = cells_[index].load(std::memory_order_relaxed);
  if (cell != nullptr) return cell;
  cell = new (std::nothrow) Cell;
  cells_[index].store(cell, std::memory_order_release);
  return cell;
}

void LaneStatistics::record(std::size_t engine, Route route, std::uint64_t bytes, std::uint64_t latency_ns, bool ok) {
  const std::size_t index = engine * route_count + static_cast<std::size_t>(route);
  Cell* const made = ensure(index);
  if (made == nullptr) return;
  Cell& cell = *made;
  if (!ok) {
    cell.failed.add(1);
    return;
  }
  cell.bytes.add(bytes);
  cell.operations.add(1);
  cell.latency_ns.add(latency_ns);
  cell.latencies[Histogram::bucket_of(latency_ns)].add(1);
  cell.batch_bytes += bytes;
  cell.batch_longest_ns = std::max(cell.batch_longest_ns, latency_ns);
  if (!cell.in_batch) batch_.push_back(index);
  cell.in_batch = true;
}

void LaneStatistics::record_call(std::size_t engine, Route route, std::uint64_t bytes, std::uint64_t latency_ns) {
  requests_.add(1);
  const std::size_t index = engine * route_count + static_cast<std::size_t>(route);
  Cell* const cell = ensure(index);
  if (cell == nullptr) return;
  const std::uint64_t before_ns = cell->batch_longest_ns;
  record(engine, route, bytes, latency_ns, true);
  cell->batch_longest_ns = before_ns + latency_ns;
}

void LaneStatistics::publish(TimePoint now) {
  for (const std::size_t index : batch_) {
    Cell& cell = *cells_[index].load(std::memory_order_relaxed);
    (*meters_)[index].add(cell.batch_bytes, cell.batch_longest_ns, now);
    cell.batch_bytes = 0;
    cell.batch_longest_ns = 0;
    cell.in_batch = false;
  }
  batch_.clear();
}

StatisticsHub::StatisticsHub(std::vector<std::string> engine_names)
    : engine_names_(with_mmap(std::move(engine_names))),
      meters_(std::make_shared<std::vector<BandwidthMeter>>(cell_count())),
      baseline_(cell_count()) {}

std::shared_ptr<LaneStatistics> StatisticsHub::add_lane() {
  const std::lock_guard lock(mutex_);
  // Acquire pairs with the release below: the new writer sees all that the old one wrote.
  auto lane = std::find_if(lanes_.begin(), lanes_.end(), [](const auto& candidate) {
    return !candidate->taken_.exchange(true, std::memory_order_acquire);
  });
  if (lane == lanes_.end()) {
    lane = lanes_.insert(lane, std::make_shared<LaneStatistics>(engine_names_.size(), meters_));
    (*lane)->taken_.store(true, std::memory_order_relaxed);
  }
  return {lane->get(),
          [owner = *lane](LaneStatistics* ended) { ended->taken_.store(false, std::memory_order_release); }};
}

void StatisticsHub::request_ended(bool ok) {
  requests_.fetch_add(1, std::memory_order_relaxed);
  if (!ok) requests_failed_.fetch_add(1, std::memory_order_relaxed);
}

// A thread keeps to one, unless another has it just now.
StatisticsHub::Shard& StatisticsHub::hold_shard() const {
  static constinit std::atomic<std::size_t> threads{0};
  thread_local const std::size_t own = threads.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t at = own;; ++at) {
    Shard& shard = shards_[at % shard_count];
    if (!shard.is_busy.exchange(true, std::memory_order_acquire)) return shard;
    if (at - own == shard_count) std::this_thread::yield();
  }
}

void StatisticsHub::count_call(std::size_t engine, Route route, std::uint64_t bytes, std::uint64_t latency_ns,
                               TimePoint now) {
  Shard& shard = hold_shard();
  if (!shard.counters) {
    static_cast<void>(or_out_of_memory([&] {
      shard.counters = add_lane();
      return Status();
    }));
  }
  if (shard.counters) {
    shard.counters->record_call(engine, route, bytes, latency_ns);
    if (now - shard.published >= publish_period) {
      shard.counters->publish(now);
      shard.published = now;
    }
  } else {
    request_ended(true);
  }
  shard.is_busy.store(false, std::memory_order_release);
}

// What was counted since.
void StatisticsHub::publish_shards() const {
  for (Shard& shard : shards_) {
    // In a forked child its holder may have stayed with the parent.
    int tries = 0;
    while (shard.is_busy.exchange(true, std::memory_order_acquire) && ++tries < shard_tries) std::this_thread::yield();
    if (tries == shard_tries) continue;
    if (shard.counters) shard.counters->publish(Clock::now());
    shard.is_busy.store(false, std::memory_order_release);
  }
}

std::uint64_t StatisticsHub::requests_locked() const {
  std::uint64_t requests = requests_.load(std::memory_order_relaxed);
  for (const auto& lane : lanes_) requests += lane->requests_.get();
  return requests;
}

void StatisticsHub::count_mapped(std::uint64_t bytes, double seconds) {
  const auto lane = add_lane();
  const std::chrono::nanoseconds time = duration_from_seconds(seconds);
  lane->record(engine_names_.size() - 1, Route::mapped, bytes, static_cast<std::uint64_t>(time.count()), true);
  lane->publish(Clock::now());
}

void StatisticsHub::Totals::subtract(const Totals& earlier) {
  bytes -= earlier.bytes;
  operations -= earlier.operations;
  failed -= earlier.failed;
  latency_ns -= earlier.latency_ns;
  busy_ns -= earlier.busy_ns;
  latencies.subtract(earlier.latencies);
}

StatisticsHub::Totals StatisticsHub::totals_locked(std::size_t cell) const {
  Totals totals;
  totals.busy_ns = (*meters_)[cell].busy_ns();
  for (const auto& lane : lanes_) {
    const LaneStatistics::Cell* const made = lane->cells_[cell].load(std::memory_order_acquire);
    if (made == nullptr) continue;
    const LaneStatistics::Cell& counted = *made;
    totals.bytes += counted.bytes.get();
    totals.operations += counted.operations.get();
    totals.failed += counted.failed.get();
    totals.latency_ns += counted.latency_ns.get();
    for (std::size_t bucket = 0; bucket < Histogram::bucket_count; ++bucket) {
      totals.latencies.add(bucket, counted.latencies[bucket].get());
    }
  }
  return totals;
}

StatisticsHub::Made StatisticsHub::made_locked() const {
  Made made;
  for (const auto& lane : lanes_) {
    made.stored_bytes += lane->stored_bytes_.get();
    made.made_bytes += lane->made_bytes_.get();
  }
  return made;
}

Statistics StatisticsHub::snapshot() const {
  publish_shards();
  const std::lock_guard lock(mutex_);
  Statistics result;
  result.seconds = seconds_between(since_, Clock::now());
  result.requests = requests_locked() - baseline_requests_;
  result.requests_failed = requests_failed_.load(std::memory_order_relaxed) - baseline_requests_failed_;
  const Made made = made_locked();
  result.stored_bytes = made.stored_bytes - baseline_made_.stored_bytes;
  result.made_bytes = made.made_bytes - baseline_made_.made_bytes;
  for (const auto& lane : lanes_) {
    result.operations_in_flight += lane->operations_in_flight_.load(std::memory_order_relaxed);
    result.bytes_in_flight += lane->bytes_in_flight_.load(std::memory_order_relaxed);
  }
  for (std::size_t cell = 0; cell < cell_count(); ++cell) {
    Totals totals = totals_locked(cell);
    totals.subtract(baseline_[cell]);
    if (totals.operations == 0 && totals.failed == 0) continue;
    RouteStatistics route;
    route.engine = engine_names_[cell / route_count];
    route.route = static_cast<Route>(cell % route_count);
    route.bytes = totals.bytes;
    route.operations = totals.operations;
    route.failed = totals.failed;
    if (totals.operations > 0) {
      route.latency_average_seconds =
          static_cast<double>(totals.latency_ns) / static_cast<double>(totals.operations) * seconds_per_ns;
    }
    route.latency_p50_seconds = totals.latencies.percentile(0.5) * seconds_per_ns;
    route.latency_p99_seconds = totals.latencies.percentile(0.99) * seconds_per_ns;
    route.latency_p999_seconds = totals.latencies.percentile(0.999) * seconds_per_ns;
    if (totals.busy_ns > 0) {
      route.bandwidth_effective =
          static_cast<double>(totals.bytes) / (static_cast<double>(totals.busy_ns) * seconds_per_ns);
    }
    // Work that was over before a window was full has no better tenth of a second than all of it.
    route.bandwidth_peak = std::max((*meters_)[cell].peak(), route.bandwidth_effective);
    result.routes.push_back(std::move(route));
  }
  return result;
}

void StatisticsHub::reset() {
  publish_shards();
  const std::lock_guard lock(mutex_);
  for (std::size_t cell = 0; cell < cell_count(); ++cell) {
    baseline_[cell] = totals_locked(cell);
    (*meters_)[cell].forget_peak();
  }
  baseline_requests_ = requests_locked();
  baseline_requests_failed_ = requests_failed_.load(std::memory_order_relaxed);
  baseline_made_ = made_locked();
  since_ = Clock::now();
}

}  // namespace penstock::core

namespace penstock {

namespace {

using Json = nlohmann::ordered_json;

// Every number of both, under the name that it has in JSON.
template <typename Route, typename Visit>
void visit_route(Route& route, Visit visit) {
  visit("bytes", route.bytes);
  visit("operations", route.operations);
  visit("failed", route.failed);
  visit("latency_average_seconds", route.latency_average_seconds);
  visit("latency_p50_seconds", route.latency_p50_seconds);
  visit("latency_p99_seconds", route.latency_p99_seconds);
  visit("latency_p999_seconds", route.latency_p999_seconds);
  visit("bandwidth_peak", route.bandwidth_peak);
  visit("bandwidth_effective", route.bandwidth_effective);
}
template <typename All, typename Visit>
void visit_totals(All& all, Visit visit) {
  visit("seconds", all.seconds);
  visit("requests", all.requests);
  visit("requests_failed", all.requests_failed);
  visit("stored_bytes", all.stored_bytes);
  visit("made_bytes", all.made_bytes);
  visit("pinned_bytes", all.pinned_bytes);
  visit("lanes_replaced", all.lanes_replaced);
  visit("quarantined_bytes", all.quarantined_bytes);
  visit("unfreed_calls", all.unfreed_calls);
  visit("unfreed_pinned_bytes", all.unfreed_pinned_bytes);
  visit("unfreed_device_bytes", all.unfreed_device_bytes);
  visit("operations_in_flight", all.operations_in_flight);
  visit("bytes_in_flight", all.bytes_in_flight);
}

// Takes numbers out of an object, and notes when one is missing or is none.
class Taker {
 public:
  explicit Taker(const Json& object) : object_(object), whole_(object.is_object()) {}
  bool whole() const { return whole_; }
  void operator()(const char* key, double& value) {
    if (const Json* found = find(key, &Json::is_number)) value = found->get<double>();
  }
  void operator()(const char* key, std::uint64_t& value) {
    if (const Json* found = find(key, &Json::is_number_unsigned)) value = found->get<std::uint64_t>();
  }
  void operator()(const char* key, std::string& value) {
    if (const Json* found = find(key, &Json::is_string)) value = found->get<std::string>();
  }

 private:
  const Json* find(const char* key, bool (Json::*is_right)() const noexcept) {
    const auto found = whole_ ? object_.find(key) : object_.end();
    whole_ = whole_ && found != object_.end() && ((*found).*is_right)();
    return whole_ ? &*found : nullptr;
  }
  const Json& object_;
  bool whole_;
};

}  // namespace

std::string Statistics::to_json(int indent) const {
  Json list = Json::array();
  for (const RouteStatistics& route : routes) {
    Json item = {{"engine", route.engine}, {"route", route_name(route.route)}};
    visit_route(route, [&](const char* key, auto value) { item[key] = value; });
    list.push_back(std::move(item));
  }
  Json object;
  visit_totals(*this, [&](const char* key, auto value) { object[key] = value; });
  object["routes"] = std::move(list);
  // Engine names are ours, but a name of a test's engine must not throw either.
  return object.dump(indent, ' ', false, Json::error_handler_t::replace);
}

Result<Statistics> Statistics::from_json(std::string_view text) {
  const Error broken{Code::invalid_argument, 0, "this is not JSON of statistics", {}};
  const Json json = Json::parse(text, nullptr, false);
  Statistics statistics;
  Taker totals(json);
  visit_totals(statistics, std::ref(totals));
  if (!totals.whole() || !json.contains("routes") || !json["routes"].is_array()) return broken;
  for (const Json& item : json["routes"]) {
    RouteStatistics route;
    std::string name;
    Taker numbers(item);
    numbers("engine", route.engine);
    numbers("route", name);
    visit_route(route, std::ref(numbers));
    const auto known = route_from_name(name);
    if (!numbers.whole() || !known) return broken;
    route.route = *known;
    statistics.routes.push_back(std::move(route));
  }
  return statistics;
}

}  // namespace penstock
