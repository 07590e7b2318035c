// How memory for groups of different sizes is cut into slots, once, so that it never fragments. A pure function.
//
//   1. Where all groups fit, each has a slot of its own.
//   2. Otherwise groups whose sizes differ by at most an eighth form a class, with slots of the largest.
//   3. Each class gets a slot, and the one with the most groups a second: one is loaded while the other is used. If the
//      budget is too small for that, the two classes that are closest in size become one.
//   4. What is left goes to the classes slot by slot, always to the one that has slots for the least part of its
//   groups.
// A group is only ever in a slot of its class. So as many groups of a class as it has slots can be held at a time,
// whatever was loaded before and whatever else is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock::layers {

constexpr std::uint64_t slot_alignment_bytes = 4096;

struct SlotClass {
  std::uint64_t slot_bytes = 0;
  std::size_t slots = 0;
  std::vector<std::uint32_t> groups;  // ascending
};

// The least budget that a group of this size fits into.
std::uint64_t slot_bytes_for(std::uint64_t group_bytes);
// Classes by size, the smallest first. REQUIRES: each group fits into the budget.
std::vector<SlotClass> cut_into_slots(std::span<const std::uint64_t> group_bytes, std::uint64_t budget_bytes);
std::uint64_t bytes_of(std::span<const SlotClass> classes);

}  // namespace penstock::layers
