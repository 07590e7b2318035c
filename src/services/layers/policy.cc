#include "services/layers/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::layers {
namespace {

constexpr double half_life_of_a_group = 16;  // a use counts half after so many acquires for each group there is
constexpr std::uint64_t tolerance = 8;       // gaps that differ by an eighth are alike

double decay(std::uint64_t time, double half_life) {
  return std::exp2(-static_cast<double>(time) / half_life);
}

bool alike(std::uint64_t a, std::uint64_t b) {
  return std::max(a, b) - std::min(a, b) <= std::max(a, b) / tolerance;
}

}  // namespace

void note_use(Uses& uses, std::uint64_t now, double half_life) {
  const std::uint64_t gap = uses.last == 0 ? 0 : now - uses.last;
  uses.weight = 1 + (uses.last == 0 ? 0 : uses.weight * decay(gap, half_life));
  uses.regular = gap != 0 && uses.gap != 0 && alike(gap, uses.gap);
  uses.gap = gap;
  uses.last = now;
}

bool is_expected(const Uses& uses, std::uint64_t now) {
  return uses.regular && now <= uses.last + uses.gap + uses.gap / tolerance;
}

double distance(const Uses& uses, std::uint64_t now, double half_life) {
  if (uses.last == 0) return std::numeric_limits<double>::infinity();
  if (is_expected(uses, now)) {
    const std::uint64_t due = uses.last + uses.gap;
    return due > now ? static_cast<double>(due - now) : 1;
  }
  // Uses at a steady rate of r add up to r times this.
  const double time_that_counts = half_life / std::log(2.0);
  const double weight = uses.weight * decay(now - uses.last, half_life);
  return std::max(1.0, time_that_counts / weight);
}

double half_life(std::size_t groups) {
  return half_life_of_a_group * static_cast<double>(std::max<std::size_t>(groups, 1));
}

bool stays(const Turns& turns, std::size_t rank) {
  if (turns.slots >= turns.groups) return true;
  const std::size_t staying = turns.slots - std::min(turns.slots, turns.for_turns);
  return rank * staying % turns.groups < staying;
}

std::size_t slots_for_turns(std::size_t slots, std::uint64_t slot_bytes, std::uint64_t ahead_bytes) {
  constexpr std::size_t least = 3;  // one is used, one is loaded, one is being loaded
  const std::uint64_t ahead = ahead_bytes / std::max<std::uint64_t>(slot_bytes, 1) + 1;
  const std::size_t wanted = 1 + static_cast<std::size_t>(std::min<std::uint64_t>(ahead, slots));
  return std::min(slots, std::max(least, std::min(wanted, slots / 2)));
}

std::optional<std::size_t> decide(std::span<const Candidate> slots, const Wish& wish) {
  std::optional<std::size_t> farthest;
  std::optional<std::size_t> farthest_at_once;
  const auto is_better = [&](const Candidate& slot, std::optional<std::size_t> than) {
    if (!than) return true;
    const Candidate& other = slots[*than];
    return slot.stays != other.stays ? !slot.stays : slot.distance > other.distance;
  };
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Candidate& slot = slots[i];
    if (slot.is_fixed) continue;
    if (slot.is_empty) return i;
    if (!wish.demanded && (slot.stays || slot.distance <= wish.distance)) continue;
    if (is_better(slot, farthest)) farthest = i;
    if (!slot.is_in_use && is_better(slot, farthest_at_once)) farthest_at_once = i;
  }
  if (!farthest_at_once) return farthest;
  const Candidate& one = slots[*farthest];
  const Candidate& other = slots[*farthest_at_once];
  const bool is_about_as_late = other.stays == one.stays && other.distance >= one.distance / 2;
  return is_about_as_late ? farthest_at_once : farthest;
}

}  // namespace penstock::layers
