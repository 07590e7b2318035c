#include <algorithm>

#include "penstock/request.h"

namespace penstock {

void Report::add(const Report& other) {
  bytes += other.bytes;
  for (std::size_t i = 0; i < route_count; ++i) routes[i] += other.routes[i];
  extra_bytes += other.extra_bytes;
  stored_bytes += other.stored_bytes;
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
