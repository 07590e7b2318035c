#include "nvme/iova_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace penstock::nvme {
namespace {

constexpr std::uint64_t unit = 4096;

TEST(IovaAllocator, keeps_away_from_what_is_reserved) {
  // As x86 tells it: interrupts are messages to addresses in between.
  const std::vector<IovaRange> usable{{0, 0xfedfffff}, {0xfef00000, 0x7fffffffff}};
  IovaAllocator allocator(usable, unit);
  std::uint64_t last_end = 0;
  while (const auto address = allocator.allocate(16 << 20, unit)) {
    const std::uint64_t end = *address + (16 << 20);
    EXPECT_TRUE(end <= 0xfee00000 || *address >= 0xfef00000) << *address;
    EXPECT_GE(*address, last_end);
    EXPECT_LE(end, 0x8000000000U);
    last_end = end;
  }
  EXPECT_LT(allocator.free_bytes(), 2U * (16 << 20));
}

TEST(IovaAllocator, never_gives_out_address_zero) {
  const std::vector<IovaRange> usable{{0, 2 * unit - 1}};
  IovaAllocator allocator(usable, unit);
  EXPECT_EQ(allocator.allocate(unit, unit), unit);
  EXPECT_EQ(allocator.allocate(unit, unit), std::nullopt);
}

TEST(IovaAllocator, rounds_ranges_to_whole_pages) {
  const std::vector<IovaRange> usable{{unit + 1, 4 * unit - 2}, {10 * unit + 1, 11 * unit}, {5, 6}};
  IovaAllocator allocator(usable, unit);
  EXPECT_EQ(allocator.free_bytes(), unit);
  EXPECT_EQ(allocator.allocate(unit, unit), 2 * unit);
}

TEST(IovaAllocator, reaches_the_last_address_there_is) {
  const std::vector<IovaRange> usable{{UINT64_MAX - 3 * unit + 1, UINT64_MAX}};
  IovaAllocator allocator(usable, unit);
  EXPECT_EQ(allocator.allocate(4 * unit, unit), std::nullopt);
  EXPECT_EQ(allocator.allocate(3 * unit, unit), UINT64_MAX - 3 * unit + 1);
  allocator.release(UINT64_MAX - 3 * unit + 1, 3 * unit);
  EXPECT_EQ(allocator.allocate(UINT64_MAX - unit + 1, unit), std::nullopt);
  EXPECT_EQ(allocator.allocate(unit, 4 * unit), std::nullopt) << "the next multiple of the alignment would wrap to 0";
}

TEST(IovaAllocator, aligns_and_uses_what_it_skipped) {
  const std::vector<IovaRange> usable{{unit, 64 * unit - 1}};
  IovaAllocator allocator(usable, unit);
  EXPECT_EQ(allocator.allocate(16 * unit, 16 * unit), 16 * unit);
  EXPECT_EQ(allocator.allocate(15 * unit, unit), unit);
  EXPECT_EQ(allocator.allocate(unit, unit), 32 * unit);
}

TEST(IovaAllocator, joins_what_is_released_in_any_order) {
  const std::vector<IovaRange> usable{{unit, 100 * unit - 1}};
  IovaAllocator allocator(usable, unit);
  std::mt19937_64 random(7);
  std::vector<IovaRange> held;
  for (int step = 0; step < 5000; ++step) {
    if (held.empty() || random() % 2 == 0) {
      const std::uint64_t size = (1 + random() % 8) * unit;
      const auto address = allocator.allocate(size, unit << random() % 3);
      if (!address) continue;
      for (const IovaRange& other : held) ASSERT_TRUE(*address > other.last || *address + size - 1 < other.first);
      held.push_back({*address, *address + size - 1});
    } else {
      std::swap(held[random() % held.size()], held.back());
      allocator.release(held.back().first, held.back().last - held.back().first + 1);
      held.pop_back();
    }
  }
  for (const IovaRange& range : held) allocator.release(range.first, range.last - range.first + 1);
  EXPECT_EQ(allocator.allocate(99 * unit, unit), unit);
}

}  // namespace
}  // namespace penstock::nvme
