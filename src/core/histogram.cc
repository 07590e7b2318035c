#include "core/histogram.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace penstock::core {
namespace {

double middle_of(std::size_t bucket) {
  if (bucket < Histogram::sub_buckets) return static_cast<double>(bucket);
  const std::size_t shift = bucket / Histogram::sub_buckets - 1;
  const auto lowest = static_cast<double>((bucket - shift * Histogram::sub_buckets) << shift);
  return lowest + static_cast<double>((std::uint64_t{1} << shift) - 1) / 2;
}

}  // namespace

void Histogram::subtract(const Histogram& earlier) {
  for (std::size_t bucket = 0; bucket < bucket_count; ++bucket) counts_[bucket] -= earlier.counts_[bucket];
}

std::uint64_t Histogram::count() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

double Histogram::percentile(double fraction) const {
  const std::uint64_t total = count();
  if (total == 0) return 0;
  const auto rank = static_cast<std::uint64_t>(std::ceil(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(total)));
  std::uint64_t seen = 0;
  for (std::size_t bucket = 0; bucket < bucket_count; ++bucket) {
    seen += counts_[bucket];
    if (seen >= std::max<std::uint64_t>(rank, 1)) return middle_of(bucket);
  }
  return middle_of(bucket_count - 1);
}

}  // namespace penstock::core
