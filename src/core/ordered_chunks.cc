#include "core/ordered_chunks.h"

#include <algorithm>
#include <bit>

#include "core/cut.h"

namespace penstock::core {

namespace {

constexpr std::uint64_t page_bytes = 4096;
// Shorter ones are not worth the bytes that their places in a block would waste.
constexpr std::uint64_t long_slice_bytes = 64 << 10;
constexpr std::uint64_t short_slice_alignment = 64;
constexpr std::uint32_t slices_max = 2048;  // in a chunk

class Cutting {
 public:
  explicit Cutting(std::uint64_t slot_bytes)
      : slot_bytes_(slot_bytes), boundary_(std::max(page_bytes, std::bit_floor(slot_bytes / 2))) {}

  // False: it can't be cut and does not fit.
  bool add(const Span& span, std::uint32_t index) {
    for (std::uint64_t position = 0; position < span.length;) {
      const std::uint64_t rest = span.length - position;
      const std::uint64_t at = place_of(span.offset + position, rest);
      const std::uint64_t room = at < slot_bytes_ ? slot_bytes_ - at : 0;
      std::uint64_t length = rest;
      if (length > room) length = span.transform == 0 ? cut(span.offset + position, room) : 0;
      const bool is_full = length == 0 || count() == slices_max || (length < rest && length < long_slice_bytes);
      if (is_full && count() != 0) {
        end_chunk();
        continue;
      }
      if (length == 0) return false;
      chunks_.slices.push_back({index, position, length, at});
      bytes_ += length;
      used_ = at + length;
      position += length;
    }
    return true;
  }

  OrderedChunks finish() {
    if (count() != 0) end_chunk();
    return std::move(chunks_);
  }

 private:
  std::uint32_t count() const { return static_cast<std::uint32_t>(chunks_.slices.size()) - first_; }

  std::uint64_t place_of(std::uint64_t offset, std::uint64_t length) const {
    if (length < long_slice_bytes) return align_up(used_, short_slice_alignment);
    const std::uint64_t within = offset % page_bytes;
    const std::uint64_t at = align_down(used_, page_bytes) + within;
    return at >= used_ ? at : at + page_bytes;
  }

  // How much of a longer range fits, up to the last boundary; of one that is alone, if need be, up to the last page.
  std::uint64_t cut(std::uint64_t offset, std::uint64_t room) const {
    std::uint64_t end = align_down(offset + room, boundary_);
    if (end <= offset && count() == 0) end = align_down(offset + room, page_bytes);
    return end > offset ? end - offset : 0;
  }

  void end_chunk() {
    chunks_.chunks.push_back({first_, count(), bytes_});
    first_ = static_cast<std::uint32_t>(chunks_.slices.size());
    bytes_ = 0;
    used_ = 0;
  }

  const std::uint64_t slot_bytes_;
  const std::uint64_t boundary_;
  OrderedChunks chunks_;
  std::uint32_t first_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t used_ = 0;
};

}  // namespace

std::optional<OrderedChunks> cut_into_chunks(std::span<const Span> spans, std::uint64_t slot_bytes) {
  Cutting cutting(slot_bytes);
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    if (!cutting.add(spans[i], i)) return std::nullopt;
  }
  return cutting.finish();
}

}  // namespace penstock::core
