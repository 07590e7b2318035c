#include "services/rows/cold.h"

#include <algorithm>
#include <bit>

#include "services/rows/round_up.h"

namespace penstock::rows {
namespace {

// Longer ones gain nothing, and would be cut.
constexpr std::uint64_t extent_limit_bytes = 1 << 20;
constexpr std::uint64_t line_bytes = 64;

// Operations that begin and end with blocks need no staging memory on their way.
std::uint64_t block_of(const StoreInfo& info) {
  return info.direct ? std::max<std::uint64_t>(info.alignments.offset, 1) : 1;
}

std::uint64_t scratch_alignment(const StoreInfo& info) {
  return std::max({line_bytes, block_of(info), std::uint64_t{info.alignments.memory}});
}

}  // namespace

ColdPlan plan_cold(const Table& table, std::span<const ColdRow> cold, Lone lone) {
  ColdPlan plan;
  const Layout& layout = *table.layout();
  for (std::size_t i = 0; i < cold.size(); ++i) {
    const std::uint64_t row = cold[i].row;
    if (i > 0 && cold[i - 1].row == row) {
      ++plan.extents.back().count;
      continue;
    }
    plan.wanted_bytes += layout.row_bytes;
    const std::size_t part = layout.part_of(row);
    const StoreInfo& info = table.shard(part).store().info();
    const std::uint64_t block = block_of(info);
    const std::uint64_t first = layout.parts[part].offset_of(row);
    const std::uint64_t begin = first / block * block;
    const std::uint64_t end = std::min(round_up(first + layout.row_bytes, block), info.size_bytes);
    if (!plan.extents.empty()) {
      ColdExtent& last = plan.extents.back();
      const std::uint64_t last_end = last.offset + last.length;
      const bool is_near = part == last.part && (begin <= last_end || begin - last_end <= table.options().join_bytes);
      // What shares a block with the last is joined whatever the length, so that nothing is read twice.
      if (is_near && (begin < last_end || end - last.offset <= extent_limit_bytes)) {
        last.length = std::max(last_end, end) - last.offset;
        ++last.count;
        continue;
      }
    }
    plan.extents.push_back({.part = part, .offset = begin, .length = end - begin, .first = i, .count = 1});
  }
  for (ColdExtent& extent : plan.extents) {
    if (lone == Lone::straight && extent.count == 1) {
      extent.is_straight = true;
      ++plan.straight_rows;
      plan.read_bytes += layout.row_bytes;
      continue;
    }
    const StoreInfo& info = table.shard(extent.part).store().info();
    extent.scratch_offset = round_up(plan.scratch_bytes, scratch_alignment(info));
    plan.scratch_bytes = extent.scratch_offset + extent.length;
    plan.read_bytes += extent.length;
  }
  return plan;
}

std::size_t different_rows_at_least(std::span<const ColdRow> cold) {
  constexpr std::size_t bits_of_a_row = 8;  // so that few share one
  const auto width = std::bit_width(cold.size() * bits_of_a_row);
  std::vector<bool> seen(std::size_t{1} << width);
  std::size_t count = 0;
  for (const ColdRow& each : cold) {
    auto bit = seen[each.row * 0x9E3779B97F4A7C15 >> (64 - width)];
    if (!bit) ++count;
    bit = true;
  }
  return count;
}

std::uint64_t scratch_bytes_of_row(const Table& table) {
  std::uint64_t most = 0;
  for (const auto& shard : table.shards()) {
    const StoreInfo& info = shard->store().info();
    most = std::max(most, 2 * block_of(info) + scratch_alignment(info));
  }
  return table.info().row_bytes + std::min(table.options().join_bytes, extent_limit_bytes) + most;
}

}  // namespace penstock::rows
