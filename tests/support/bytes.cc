// Bytes that can be checked. Most of a test's time goes into these, so they are optimized in every build.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "support/support.h"

namespace penstock::test {

namespace {

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

// Calls `use(at, bytes)` for one page of content after the other. Whole words in little memory: byte by byte, or all at
// once, the sanitizers would take most of a test's time.
template <typename Use>
void for_each_block(std::uint64_t seed, std::uint64_t offset, std::size_t size, Use use) {
  std::array<std::uint64_t, 512> words{};
  for (std::size_t at = 0; at < size;) {
    const std::size_t skipped = (offset + at) % sizeof words[0];
    const std::size_t length = std::min(size - at, sizeof words - skipped);
    const std::uint64_t first = seed * 0x9e3779b97f4a7c15ULL + (offset + at) / sizeof words[0];
    for (std::size_t i = 0; i * sizeof words[0] < skipped + length; ++i) words[i] = mix(first + i);
    use(at, std::as_bytes(std::span(words)).subspan(skipped, length));
    at += length;
  }
}

}  // namespace

std::vector<std::byte> content(std::uint64_t seed, std::uint64_t offset, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for_each_block(seed, offset, size, [&](std::size_t at, std::span<const std::byte> block) {
    std::memcpy(&bytes[at], block.data(), block.size());
  });
  return bytes;
}

bool same_bytes(std::span<const std::byte> some, std::span<const std::byte> others) {
  return some.size() == others.size() && (some.empty() || std::memcmp(some.data(), others.data(), some.size()) == 0);
}

bool all_are(std::span<const std::byte> bytes, std::byte value) {
  // Each byte is like the one before it.
  return bytes.empty() || (bytes[0] == value && same_bytes(bytes.subspan(1), bytes.first(bytes.size() - 1)));
}

testing::AssertionResult holds_content(std::span<const std::byte> bytes, std::uint64_t seed, std::uint64_t offset) {
  std::optional<std::size_t> differs;
  for_each_block(seed, offset, bytes.size(), [&](std::size_t at, std::span<const std::byte> block) {
    const auto part = bytes.subspan(at, block.size());
    if (differs || same_bytes(part, block)) return;
    const auto found = std::mismatch(part.begin(), part.end(), block.begin()).first - part.begin();
    differs = at + static_cast<std::size_t>(found);
  });
  if (!differs) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "byte " << *differs << " of " << bytes.size() << ", at offset "
                                     << offset + *differs;
}

}  // namespace penstock::test
