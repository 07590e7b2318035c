#include <algorithm>
#include <cstdio>

#include "penstock/request.h"

namespace penstock {

std::vector<RouteShare> Report::routes_taken() const {
  std::vector<RouteShare> taken;
  for (std::size_t i = 0; i < route_count; ++i) {
    if (routes[i] != 0) taken.push_back({static_cast<Route>(i), routes[i]});
  }
  std::stable_sort(taken.begin(), taken.end(),
                   [](const RouteShare& a, const RouteShare& b) { return a.bytes > b.bytes; });
  return taken;
}

std::string Report::to_string() const {
  if (error) return error->message + (error->hint.empty() ? "" : "\n" + error->hint);
  char numbers[96];
  const double gigabytes_per_second = seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
  std::snprintf(numbers, sizeof numbers, "%llu bytes in %.3f s, %.2f GB/s", 0ULL + bytes, seconds,
                gigabytes_per_second);
  std::string text = numbers;
  for (const RouteShare& share : routes_taken()) {
    text += ", " + std::string(route_name(share.route)) + ' ' + std::to_string(share.bytes);
  }
  return reason.empty() ? text : text + '\n' + reason;
}

void Report::add(const Report& other) {
  bytes += other.bytes;
  for (std::size_t i = 0; i < route_count; ++i) routes[i] += other.routes[i];
  extra_bytes += other.extra_bytes;
  stored_bytes += other.stored_bytes;
  made_bytes += other.made_bytes;
  if (engine.empty()) engine = other.engine;
  if (reason.empty()) reason = other.reason;
  if (limit == Limit::unknown) limit = other.limit;
  storage_seconds += other.storage_seconds;
  copy_seconds += other.copy_seconds;
  cpu_seconds += other.cpu_seconds;
  constexpr std::size_t failures_kept = 64;
  for (const Failure& failure : other.failures) {
    if (failures.size() < failures_kept) failures.push_back(failure);
  }
  failure_count += other.failure_count;
  if (!error) error = other.error;
  // The list of outcomes goes from good to bad.
  if (other.outcome != Outcome::pending) outcome = std::max(outcome, other.outcome);
}

}  // namespace penstock
