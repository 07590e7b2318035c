#include "penstock/checksum.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/keyed_hash.h"

namespace penstock {
namespace {

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t index = 0; index < size; ++index) bytes[index] = static_cast<std::byte>(index * 31 + index / 251);
  return bytes;
}

TEST(Checksum, of_nothing_is_the_published_value) {
  EXPECT_EQ(Checksum().value(), 0x2d06800538d394c2u);
  EXPECT_EQ(Checksum().hex(), "2d06800538d394c2");
}

TEST(Checksum, does_not_depend_on_how_the_bytes_are_cut) {
  const auto bytes = pattern(100'000);
  Checksum whole;
  whole.add(bytes);
  for (const std::size_t piece : {1u, 7u, 4096u, 99'999u}) {
    Checksum pieces;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      pieces.add(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    }
    EXPECT_EQ(pieces.value(), whole.value()) << piece;
  }
}

TEST(Checksum, changes_when_a_bit_changes) {
  auto bytes = pattern(5000);
  Checksum before;
  before.add(bytes);
  bytes[4321] ^= std::byte{1};
  Checksum after;
  after.add(bytes);
  EXPECT_NE(before.value(), after.value());
}

TEST(Checksum, may_be_asked_at_any_time_and_moved) {
  const auto bytes = pattern(1000);
  Checksum first;
  first.add(std::span(bytes).first(500));
  const auto half = first.value();
  Checksum moved = std::move(first);
  EXPECT_EQ(moved.value(), half);
  moved.add(std::span(bytes).last(500));
  Checksum whole;
  whole.add(bytes);
  EXPECT_EQ(moved.value(), whole.value());
}

TEST(Checksum, hex_keeps_leading_zeros) {
  for (std::size_t size = 0; size < 64; ++size) {
    Checksum checksum;
    checksum.add(pattern(size));
    EXPECT_EQ(checksum.hex().size(), 16u);
    EXPECT_EQ(std::stoull(checksum.hex(), nullptr, 16), checksum.value());
  }
}

TEST(KeyedHash, is_the_same_for_the_same_text_in_this_process_and_has_a_key) {
  for (const std::string& text : {std::string(), std::string("blocks.0.weight"), std::string(1000, 'x')}) {
    EXPECT_EQ(keyed_hash(text), keyed_hash(std::string(text)));
    EXPECT_NE(keyed_hash(text), keyed_hash(text + "y"));
    Checksum without_key;
    without_key.add(std::as_bytes(std::span(text)));
    EXPECT_NE(keyed_hash(text), without_key.value());
  }
}

}  // namespace
}  // namespace penstock
