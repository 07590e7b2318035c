#include "core/cut.h"

#include <algorithm>

namespace penstock::core {

namespace {

// However short staging memory is, a piece has bytes: whoever finds no room for a block goes another way.
std::uint64_t staged_bytes_most(const CutRules& rules) {
  return std::max(rules.staging_bytes, rules.alignment);
}

Cut cut_direct_write(const CutRules& rules, const Rest& rest, std::uint64_t to_boundary) {
  const std::uint64_t into_block = rest.offset % rules.alignment;
  if (into_block != 0 || rest.length < rules.alignment) {
    return {std::min(rest.length, rules.alignment - into_block), Shape::edge};
  }
  const std::uint64_t body = align_down(std::min(rest.length, to_boundary), rules.alignment);
  if (rest.address % rules.memory_alignment == 0 && !rules.staged_only) return {body, Shape::plain};
  return {std::min(body, staged_bytes_most(rules)), Shape::staged};
}

Cut cut_direct_read(const CutRules& rules, const Rest& rest, std::uint64_t to_boundary) {
  const std::uint64_t into_block = rest.offset % rules.alignment;
  const std::uint64_t block_left = into_block == 0 ? 0 : rules.alignment - into_block;
  const bool body_is_plain = !rules.staged_only && (rest.address + block_left) % rules.memory_alignment == 0;
  if (into_block == 0 && body_is_plain && rest.length >= rules.alignment) {
    return {align_down(std::min(rest.length, to_boundary), rules.alignment), Shape::plain};
  }
  // A short range costs one operation with its surroundings, not one for each end.
  constexpr std::uint64_t short_bytes = 64 << 10;
  const std::uint64_t around = align_up(rest.offset + rest.length, rules.alignment) - (rest.offset - into_block);
  if (around <= std::min(short_bytes, rules.staging_bytes)) return {rest.length, Shape::staged};
  if (into_block != 0 && body_is_plain) return {std::min(rest.length, block_left), Shape::staged};
  return {std::min({rest.length, to_boundary, staged_bytes_most(rules) - into_block}), Shape::staged};
}

}  // namespace

Cut cut(const CutRules& rules, const Rest& rest) {
  const std::uint64_t to_boundary = rules.longest_bytes - (rest.offset + rules.longest_bytes) % rules.chunk_bytes;
  if (rules.path == engine::Path::cached || rules.path == engine::Path::buffered) {
    if (!rules.staged_only) return {std::min(rest.length, to_boundary), Shape::plain};
    return {std::min({rest.length, to_boundary, std::max<std::uint64_t>(1, rules.staging_bytes)}), Shape::staged};
  }
  return rules.direction == Direction::write ? cut_direct_write(rules, rest, to_boundary)
                                             : cut_direct_read(rules, rest, to_boundary);
}

}  // namespace penstock::core
