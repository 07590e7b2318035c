#include "watch.h"

#include <langinfo.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "output.h"

namespace penstock::cli {

namespace {

constexpr std::size_t least_bar_columns = 8;
constexpr std::size_t most_bar_columns = 40;
constexpr std::size_t around_bar_columns = 22;  // "lane 12 " and " 10.5 GB/s"

struct Signs {
  const char *works, *storage, *copies, *idle;
};

Signs signs() {
  const bool utf8 = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  return utf8 ? Signs{"\u2588", "\u2592", "\u2591", "\u00b7"} : Signs{"#", "s", "c", "."};
}

struct Activity {
  double storage = 0, copies = 0, idle = 0;  // seconds
  std::uint64_t bytes = 0;
};

std::vector<Activity> activities(const Trace& trace, double since) {
  std::vector<Activity> lanes(trace.lanes);
  for (const TraceEvent& event : trace.events) {
    Activity& lane = lanes[event.lane];
    const double seconds = event.end_seconds - std::max(event.begin_seconds, since);
    if (event.kind == TraceKind::storage) lane.bytes += event.bytes;
    if (event.kind == TraceKind::waits_for_storage) lane.storage += seconds;
    if (event.kind == TraceKind::waits_for_copies) lane.copies += seconds;
    if (event.kind == TraceKind::idle) lane.idle += seconds;
  }
  // Of a lane that has nothing to do, nothing ends.
  for (Activity& lane : lanes) {
    if (lane.bytes == 0 && lane.storage + lane.copies + lane.idle == 0) lane.idle = trace.seconds - since;
  }
  return lanes;
}

std::string bar(const Activity& lane, double seconds, std::size_t columns) {
  const Signs sign = signs();
  std::string text;
  std::size_t left = columns;
  const auto add = [&](const char* what, double part) {
    const auto count =
        std::min(left, static_cast<std::size_t>(std::lround(part / seconds * static_cast<double>(columns))));
    for (std::size_t i = 0; i < count; ++i) text += what;
    left -= count;
  };
  add(sign.works, std::max(0.0, seconds - lane.storage - lane.copies - lane.idle));
  add(sign.storage, lane.storage);
  add(sign.copies, lane.copies);
  while (left-- > 0) text += sign.idle;
  return text;
}

}  // namespace

Watch::Watch(const Context& context, std::uint64_t total_bytes)
    : context_(context),
      total_bytes_(total_bytes),
      text_(stderr, LiveText::End::erase),
      seen_seconds_(context.trace(1e30).seconds) {}

void Watch::update(std::uint64_t bytes_done) {
  if (!text_.visible()) return;
  const Trace trace = context_.trace(seen_seconds_);
  const double seconds = trace.seconds - seen_seconds_;
  if (seconds <= 0) return;
  const Signs sign = signs();
  std::vector<std::string> lines = {format_progress(bytes_done, total_bytes_, stopwatch_.seconds()),
                                    std::string(sign.works) + " works " + sign.storage + " waits for storage " +
                                        sign.copies + " for copies " + sign.idle + " idle"};
  const std::size_t columns =
      std::clamp(text_.columns() - std::min(text_.columns(), around_bar_columns), least_bar_columns, most_bar_columns);
  const std::vector<Activity> lanes = activities(trace, seen_seconds_);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    lines.push_back("lane " + std::to_string(i) + " " + bar(lanes[i], seconds, columns) + " " +
                    format_rate(rate(lanes[i].bytes, seconds)));
  }
  text_.show(lines);
  seen_seconds_ = trace.seconds;
}

}  // namespace penstock::cli
