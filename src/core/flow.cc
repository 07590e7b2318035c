#include "core/flow.h"

#include <algorithm>
#include <bit>

namespace penstock::core {

namespace {

// Of the time that operations take: how much they should wait for others. Less: the store may be idle now and then.
constexpr double queue_at_least = 0.3;
constexpr double queue_at_most = 0.6;
// Windows that come back before the next look, so that one slow operation means nothing.
constexpr std::uint64_t windows_between_looks = 4;
// A disk that others use too is quicker for a while and slower for a while: of shorter looks each would be another.
constexpr Duration shortest_between_looks = std::chrono::milliseconds(50);
constexpr Duration longest_between_looks = std::chrono::milliseconds(500);
// One at the store, one that has just come back, and as many on their way elsewhere.
constexpr std::uint64_t staged_pieces = 4;
// Longer operations gain nothing on any store.
constexpr std::uint64_t piece_bytes_most = 16 << 20;
// Of what is in flight: smaller changes tell nothing.
constexpr double noticeable = 1.2;
// As long as it takes to see what more has brought.
constexpr std::uint32_t looks_at_a_try = 3;
// Where operations wait long as it is, more is tried more rarely.
constexpr std::uint32_t slow_tries = 8;
constexpr std::uint32_t first_patience = 16;
constexpr std::uint32_t longest_patience = 1024;

}  // namespace

Flow::Flow(const FlowLimits& limits)
    : limits_(limits), window_bytes_(std::min(limits.least_bytes, limits.most_bytes)) {}

std::uint64_t Flow::staged_piece_bytes() const {
  return std::min(limits_.chunk_bytes, std::max(least_piece_bytes, std::bit_floor(lane_bytes() / staged_pieces)));
}

std::uint64_t Flow::plain_piece_bytes() const {
  const std::uint64_t chunk = limits_.chunk_bytes;
  const std::uint64_t fills = std::bit_ceil(lane_bytes() / std::max(1U, limits_.operations));
  const std::uint64_t grown = chunk * std::max<std::uint64_t>(1, window_bytes() / limits_.least_bytes);
  return std::max(chunk, std::min({fills, grown, piece_bytes_most}));
}

Duration Flow::shortest_with(std::uint64_t bytes, Duration latency) {
  Duration& shortest = shortest_[static_cast<std::size_t>(std::bit_width(bytes | 1) - 1)];
  if (shortest == Duration::zero() || latency < shortest) shortest = latency;
  return shortest;
}

void Flow::note(std::uint64_t bytes, Duration latency, TimePoint now) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  const Duration shortest = shortest_with(bytes, latency);
  if (now - latency < changed_) return;
  // Nothing was asked for in between: that says nothing of the store.
  if (look_.operations == 0 || now - look_.last > 2 * latency) {
    look_ = {};
    look_.begun = now - latency;
  }
  look_.last = now;
  look_.bytes += bytes;
  ++look_.operations;
  look_.latency += latency;
  look_.shortest += shortest;
  const Duration looked = now - look_.begun;
  const bool has_come_round =
      found_queue_ ? look_.bytes >= windows_between_looks * window_bytes() && looked >= shortest_between_looks
                   : look_.bytes >= window_bytes();
  if (look_.operations < 2 * limits_.lanes || !(has_come_round || looked >= longest_between_looks)) return;
  const std::uint64_t before = window_bytes();
  adapt(now);
  if (window_bytes() != before) changed_ = now;
}

void Flow::adapt(TimePoint now) {
  const std::uint64_t window = window_bytes();
  const double bandwidth = static_cast<double>(look_.bytes) / std::max(1e-9, seconds_between(look_.begun, now));
  const double latency = std::chrono::duration<double>(look_.latency).count() / look_.operations;
  const double waited = latency - std::chrono::duration<double>(look_.shortest).count() / look_.operations;
  // Lanes have an operation in flight each, however small the window is: what counts is what was there.
  const Seen seen{window, bandwidth, bandwidth * latency};
  Change change = change_since_last(seen);
  const std::uint64_t window_before = seen_.window_bytes;
  if (change != Change::none || seen_.window_bytes == 0) seen_ = seen;
  const bool was_full = full_.exchange(false, std::memory_order_relaxed);
  look_ = {};
  // A store that has become much slower is another store.
  if (patience_ > 0) patience_ = bandwidth < patient_bandwidth_ / 2 ? 0 : patience_ - 1;

  if (change == Change::less_brought_less && was_full) {
    set_window(window_before);
    came_back_ = true;
    next_patience_ = std::clamp(next_patience_ * 2, first_patience, longest_patience);
    patience_ = next_patience_;
    patient_bandwidth_ = bandwidth;
    return;
  }
  if (std::exchange(came_back_, false)) {
    // What did not come back was not lost by us.
    if (change == Change::more_brought_nothing) patience_ = next_patience_ = 0;
    change = Change::none;
  }
  if (change == Change::more_brought_nothing) {
    found_queue_ = true;
    if (tries_more_) set_window(window_before);
    if (std::exchange(tries_more_, false)) looks_between_tries_ = std::min(2 * looks_between_tries_, longest_patience);
  }
  const bool earned = change == Change::more_brought_more;
  if (earned) looks_between_tries_ = first_looks_between_tries;
  // Before the first try nobody knows whether more would bring more.
  const bool untried = !found_queue_ && change == Change::none;
  if (waited < queue_at_least * latency || earned || untried) {
    if (!was_full) return;
    const std::uint64_t step = staged_piece_bytes() * limits_.lanes;
    set_window(found_queue_ && !earned ? window + step : window * 2);
    return;
  }
  found_queue_ = true;
  // What was short once, from a cache maybe, is the measure for ever; so now and then more is tried all the same.
  const double queue_time_most = std::chrono::duration<double>(limits_.queue_time_most).count();
  const std::uint32_t looks_between = looks_between_tries_ * (waited > queue_time_most ? slow_tries : 1);
  if (was_full && ++looks_ >= looks_between) {
    looks_ = 0;
    tries_more_ = true;
    patience_ = std::max(patience_, looks_at_a_try);
    seen_ = seen;
    set_window(2 * std::max(window, static_cast<std::uint64_t>(seen.bytes_in_flight)));
    return;
  }
  if (patience_ > 0 || waited <= queue_at_most * latency) return;
  if (waited > queue_time_most) {
    // What is in flight takes too long to come home.
    const double shorter = (latency - waited + queue_time_most) / latency;
    const auto bytes = static_cast<std::uint64_t>(shorter * static_cast<double>(window));
    window_bytes_.store(std::max(bytes, std::min(window, least_piece_bytes * limits_.lanes)),
                        std::memory_order_relaxed);
  } else if (window > limits_.least_bytes) {
    set_window(window - window / 4);
  }
}

Flow::Change Flow::change_since_last(const Seen& now) const {
  if (seen_.window_bytes == 0) return Change::none;
  const double in_flight = now.bytes_in_flight / seen_.bytes_in_flight;
  if (in_flight > 1 / noticeable && in_flight < noticeable) return Change::none;
  const bool follows = (now.bandwidth / seen_.bandwidth - 1) / (in_flight - 1) > 0.5;
  if (in_flight > 1) return follows ? Change::more_brought_more : Change::more_brought_nothing;
  return follows ? Change::less_brought_less : Change::less_cost_nothing;
}

void Flow::set_window(std::uint64_t bytes) {
  window_bytes_.store(std::min(std::max(bytes, limits_.least_bytes), limits_.most_bytes), std::memory_order_relaxed);
}

std::vector<LaneFlow::InFlight>::iterator LaneFlow::find(const Flow& flow) {
  return std::find_if(in_flight_.begin(), in_flight_.end(), [&](const InFlight& one) { return one.flow == &flow; });
}

bool LaneFlow::has_room(Flow& flow) {
  const auto found = find(flow);
  if (found == in_flight_.end() || found->bytes < flow.lane_bytes() * shares_) return true;
  flow.note_full();
  return false;
}

void LaneFlow::begin(Flow& flow, std::uint64_t bytes) {
  auto found = find(flow);
  if (found == in_flight_.end()) found = in_flight_.insert(found, {.flow = &flow});
  found->bytes += bytes;
  ++found->operations;
}

void LaneFlow::end(Flow& flow, std::uint64_t bytes) {
  const auto found = find(flow);
  found->bytes -= bytes;
  if (--found->operations != 0) return;
  *found = in_flight_.back();
  in_flight_.pop_back();
}

std::shared_ptr<Flow> Flows::of(const Key& key) const {
  if (key.device.empty()) return std::make_shared<Flow>(limits_);
  const std::scoped_lock lock(mutex_);
  std::shared_ptr<Flow>& flow = known_[key];
  if (!flow) flow = std::make_shared<Flow>(limits_);
  return flow;
}

}  // namespace penstock::core
