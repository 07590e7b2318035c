#include "services/layers/slots.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace penstock::layers {
namespace {

std::uint64_t rounded(std::uint64_t bytes) {
  return (std::max<std::uint64_t>(bytes, 1) + slot_alignment_bytes - 1) / slot_alignment_bytes * slot_alignment_bytes;
}

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

std::uint64_t bytes_of(std::span<const SlotClass> classes) {
  std::uint64_t bytes = 0;
  for (const SlotClass& each : classes) bytes += each.slots * each.slot_bytes;
  return bytes;
}

Result<std::vector<SlotClass>> cut_into_slots(std::span<const std::uint64_t> group_bytes, std::uint64_t budget_bytes) {
  std::vector<std::uint64_t> sizes;
  std::uint64_t all = 0;
  bool fit = true;
  for (std::size_t i = 0; i < group_bytes.size(); ++i) {
    if (group_bytes[i] > budget_bytes || rounded(group_bytes[i]) > budget_bytes) {
      return Error{Code::invalid_argument, 0,
                   "a budget of " + std::to_string(budget_bytes) + " bytes is smaller than group " + std::to_string(i) +
                       ", which needs " + std::to_string(rounded(group_bytes[i])),
                   "raise the budget, or make the groups smaller"};
    }
    sizes.push_back(rounded(group_bytes[i]));
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
