#include "core/trace.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <utility>

namespace penstock::core {

namespace {

// Lanes that are replaced are few; should they not be, their traces must not add up.
constexpr std::size_t most_lanes = 256;
// Waits that are so close are one: the lane only looked around.
constexpr double joined_seconds = 5e-6;

}  // namespace

LaneTrace::LaneTrace(std::uint32_t lane, std::uint32_t capacity, TimePoint origin)
    : lane_(lane), capacity_(capacity), origin_(origin) {
  // Not touched before it is used: what stays empty costs no memory.
  events_.reserve(capacity);
}

void LaneTrace::append(const TraceEvent& event) {
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  if (count == capacity_) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  events_.push_back(event);
  count_.store(count + 1, std::memory_order_release);
}

void LaneTrace::add_wait(TraceKind kind, TimePoint begin, TimePoint end) {
  const TraceEvent event{.begin_seconds = seconds_between(origin_, begin),
                         .end_seconds = seconds_between(origin_, end),
                         .lane = lane_,
                         .kind = kind};
  if (wait_ && wait_->kind == kind && event.begin_seconds - wait_->end_seconds < joined_seconds) {
    wait_->end_seconds = event.end_seconds;
    return;
  }
  end_wait();
  wait_ = event;
}

void LaneTrace::end_wait() {
  if (wait_) append(*wait_);
  wait_.reset();
}

void LaneTrace::add_transfer(TraceKind kind, TimePoint begin, TimePoint end, std::uint64_t bytes, Route route) {
  end_wait();
  append({.begin_seconds = seconds_between(origin_, begin),
          .end_seconds = seconds_between(origin_, end),
          .bytes = bytes,
          .lane = lane_,
          .kind = kind,
          .route = route});
}

void LaneTrace::read(double since_seconds, Trace& trace) const {
  const TraceEvent* begin = events_.data();
  const TraceEvent* end = begin + count_.load(std::memory_order_acquire);
  for (const TraceEvent* event = begin; event != end; ++event) {
    if (event->end_seconds > since_seconds) trace.events.push_back(*event);
  }
  trace.dropped += dropped_.load(std::memory_order_relaxed);
}

LaneTrace* TraceHub::add_lane() {
  const std::scoped_lock lock(mutex_);
  if (events_per_lane_ == 0 || lanes_.size() == most_lanes) return nullptr;
  const auto lane = static_cast<std::uint32_t>(lanes_.size());
  return lanes_.emplace_back(std::make_unique<LaneTrace>(lane, events_per_lane_, origin_)).get();
}

Trace TraceHub::snapshot(double since_seconds) const {
  const std::scoped_lock lock(mutex_);
  Trace trace{.seconds = seconds_between(origin_, Clock::now()), .lanes = static_cast<std::uint32_t>(lanes_.size())};
  for (const auto& lane : lanes_) lane->read(since_seconds, trace);
  return trace;
}

}  // namespace penstock::core

namespace penstock {

namespace {

// Rows of operations begin here, rows of copies there; 0 is the lane's own.
constexpr int first_storage_row = 1;
constexpr int first_copy_row = 10'000;

// Every row ends somewhere; what begins later than that fits into it.
class TraceRows {
 public:
  explicit TraceRows(int first) : first_(first) {}
  int place(const TraceEvent& event) {
    const auto free = std::ranges::find_if(ends_, [&](double end) { return end <= event.begin_seconds; });
    const auto row = free - ends_.begin();
    if (free == ends_.end()) ends_.push_back(0);
    ends_[static_cast<std::size_t>(row)] = event.end_seconds;
    return first_ + static_cast<int>(row);
  }
  int first() const { return first_; }
  int end() const { return first_ + static_cast<int>(ends_.size()); }

 private:
  const int first_;
  std::vector<double> ends_;
};

__attribute__((format(printf, 2, 3))) void add_line(std::string& text, const char* pattern, ...) {
  std::array<char, 256> line{};
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(line.data(), line.size(), pattern, arguments);
  va_end(arguments);
  text += text.ends_with('[') ? "\n" : ",\n";
  text += line.data();
}

void add_name(std::string& text, std::uint32_t lane, int row, const char* what, const std::string& name) {
  add_line(text, R"({"ph":"M","pid":%u,"tid":%d,"name":"%s","args":{"name":"%s"}})", lane, row, what, name.c_str());
}

void add_rows(std::string& text, std::uint32_t lane, const TraceRows& rows, const char* name) {
  for (int row = rows.first(); row < rows.end(); ++row) add_name(text, lane, row, "thread_name", name);
}

void add_event(std::string& text, const TraceEvent& event, int row) {
  const std::string_view name = trace_kind_name(event.kind);
  const double microseconds = 1e6;
  std::array<char, 96> details{};
  if (event.kind == TraceKind::storage) {
    std::snprintf(details.data(), details.size(), R"("bytes":%llu,"route":"%s")",
                  static_cast<unsigned long long>(event.bytes), std::string(route_name(event.route)).c_str());
  } else if (event.kind == TraceKind::copy) {
    std::snprintf(details.data(), details.size(), R"("bytes":%llu)", static_cast<unsigned long long>(event.bytes));
  }
  add_line(text, R"({"ph":"X","pid":%u,"tid":%d,"name":"%.*s","ts":%.3f,"dur":%.3f,"args":{%s}})", event.lane, row,
           static_cast<int>(name.size()), name.data(), event.begin_seconds * microseconds,
           (event.end_seconds - event.begin_seconds) * microseconds, details.data());
}

void add_lane(std::string& text, std::vector<TraceEvent> events) {
  std::ranges::sort(events, {}, &TraceEvent::begin_seconds);
  const std::uint32_t lane = events.front().lane;
  add_name(text, lane, 0, "process_name", "lane " + std::to_string(lane));
  add_name(text, lane, 0, "thread_name", "waiting");
  TraceRows storage(first_storage_row), copies(first_copy_row);
  for (const TraceEvent& event : events) {
    const int row = event.kind == TraceKind::storage ? storage.place(event)
                    : event.kind == TraceKind::copy  ? copies.place(event)
                                                     : 0;
    add_event(text, event, row);
  }
  add_rows(text, lane, storage, "storage");
  add_rows(text, lane, copies, "copy");
}

}  // namespace

std::string_view trace_kind_name(TraceKind kind) {
  static constexpr std::array<std::string_view, 5> names = {"storage", "copy", "waits for storage", "waits for copies",
                                                            "idle"};
  const auto index = static_cast<std::size_t>(kind);
  return index < names.size() ? names[index] : "unknown";
}

std::string Trace::to_chrome_json() const {
  std::vector<std::vector<TraceEvent>> by_lane(lanes);
  for (const TraceEvent& event : events) {
    if (event.lane < lanes) by_lane[event.lane].push_back(event);
  }
  std::string text =
      R"({"displayTimeUnit":"ms","otherData":{"dropped":)" + std::to_string(dropped) + R"(},"traceEvents":[)";
  for (auto& lane : by_lane) {
    if (!lane.empty()) add_lane(text, std::move(lane));
  }
  return text + "\n]}\n";
}

}  // namespace penstock
