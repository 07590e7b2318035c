#include "services/layers/slots.h"

#include <algorithm>
#include <numeric>

namespace penstock::layers {
namespace {

// Classes of equal sizes, or of sizes at most an eighth above the smallest.
std::vector<SlotClass> classes_of(std::span<const std::uint64_t> sizes, bool equal_only) {
  std::vector<std::uint32_t> order(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::uint32_t group) { return sizes[group]; });
  std::vector<SlotClass> classes;
  std::uint64_t smallest = 0;
  for (const std::uint32_t group : order) {
    const std::uint64_t bytes = sizes[group];
    if (classes.empty() || bytes > smallest + (equal_only ? 0 : smallest / 8)) {
      classes.emplace_back();
      smallest = bytes;
    }
    classes.back().groups.push_back(group);
    classes.back().slot_bytes = bytes;
  }
  for (SlotClass& each : classes) std::ranges::sort(each.groups);
  return classes;
}

void merge_closest(std::vector<SlotClass>& classes) {
  std::size_t closest = 0;
  double least = 0;
  for (std::size_t i = 0; i + 1 < classes.size(); ++i) {
    const double ratio = static_cast<double>(classes[i + 1].slot_bytes) / static_cast<double>(classes[i].slot_bytes);
    if (i == 0 || ratio < least) {
      closest = i;
      least = ratio;
    }
  }
  std::vector<std::uint32_t>& groups = classes[closest + 1].groups;
  groups.insert(groups.end(), classes[closest].groups.begin(), classes[closest].groups.end());
  std::ranges::sort(groups);
  classes.erase(classes.begin() + static_cast<std::ptrdiff_t>(closest));
}

// The class with slots for the least part of its groups, among those that one more slot fits for; null: none.
SlotClass* neediest(std::vector<SlotClass>& classes, std::uint64_t left_bytes) {
  SlotClass* found = nullptr;
  for (SlotClass& each : classes) {
    if (each.slots == each.groups.size() || each.slot_bytes > left_bytes) continue;
    if (found == nullptr || each.slots * found->groups.size() < found->slots * each.groups.size()) found = &each;
  }
  return found;
}

// Whether each class can have a slot, and the one with the most groups a second.
bool is_enough(const std::vector<SlotClass>& classes, std::uint64_t budget_bytes) {
  const auto most = std::ranges::max_element(classes, {}, [](const SlotClass& each) { return each.groups.size(); });
  return bytes_of(classes) + (most->groups.size() > 1 ? most->slot_bytes : 0) <= budget_bytes;
}

}  // namespace

std::uint64_t slot_bytes_for(std::uint64_t group_bytes) {
  const std::uint64_t pages = group_bytes / slot_alignment_bytes + (group_bytes % slot_alignment_bytes != 0 ? 1 : 0);
  return std::max<std::uint64_t>(pages, 1) * slot_alignment_bytes;
}

std::uint64_t bytes_of(std::span<const SlotClass> classes) {
  std::uint64_t bytes = 0;
  for (const SlotClass& each : classes) bytes += each.slots * each.slot_bytes;
  return bytes;
}

std::vector<SlotClass> cut_into_slots(std::span<const std::uint64_t> group_bytes, std::uint64_t budget_bytes) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t all = 0;
  bool fit = true;
  for (const std::uint64_t bytes : group_bytes) {
    sizes.push_back(slot_bytes_for(bytes));
    fit = fit && sizes.back() <= budget_bytes - all;
    if (fit) all += sizes.back();
  }
  std::vector<SlotClass> classes = classes_of(sizes, fit);
  for (SlotClass& each : classes) each.slots = fit ? each.groups.size() : 1;
  while (!fit && classes.size() > 1 && !is_enough(classes, budget_bytes)) merge_closest(classes);
  while (SlotClass* const each = neediest(classes, budget_bytes - bytes_of(classes))) ++each->slots;
  return classes;
}

}  // namespace penstock::layers
