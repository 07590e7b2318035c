// Histogram: counts of values in buckets that are linear within a power of two, so that a percentile is right to about
// three per cent whatever the scale. Histograms subtract: the difference of two snapshots is what came between.
//
// Thread safety: a value. Lane counters share its buckets (statistics.h).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace penstock::core {

class Histogram {
 public:
  static constexpr unsigned sub_bucket_bits = 4;
  static constexpr std::uint64_t sub_buckets = 1u << sub_bucket_bits;
  // In nanoseconds more than an hour; larger values count as this one.
  static constexpr std::uint64_t largest_value = (std::uint64_t{1} << 42) - 1;

  static constexpr std::size_t bucket_of(std::uint64_t value) {
    if (value > largest_value) value = largest_value;
    if (value < sub_buckets) return static_cast<std::size_t>(value);
    const unsigned shift = static_cast<unsigned>(std::bit_width(value)) - sub_bucket_bits - 1;
    return static_cast<std::size_t>(shift * sub_buckets + (value >> shift));
  }
  static constexpr std::size_t bucket_count = 39 * sub_buckets;

  void add(std::size_t bucket, std::uint64_t count) { counts_[bucket] += count; }
  // REQUIRES: `earlier` is an earlier state of this histogram.
  void subtract(const Histogram& earlier);
  std::uint64_t count() const;
  // The value that `fraction` (0 to 1) of all values don't exceed; 0 if there are none.
  double percentile(double fraction) const;

 private:
  std::array<std::uint64_t, bucket_count> counts_{};
};
static_assert(Histogram::bucket_of(Histogram::largest_value) == Histogram::bucket_count - 1);

}  // namespace penstock::core
