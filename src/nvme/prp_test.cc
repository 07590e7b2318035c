#include "penstock/prp.h"

#include <gtest/gtest.h>

#include <vector>

namespace penstock::nvme {
namespace {

constexpr std::uint64_t page = 4096;

struct List {
  explicit List(std::size_t bytes, std::uint64_t at = 0x100000) : entries(bytes / 8, 0xdead), address(at) {}
  PrpListMemory memory() { return {entries.data(), address}; }
  std::vector<std::uint64_t> entries;
  std::uint64_t address;
};

// What a controller makes of it: the pages in order, following chains.
std::vector<std::uint64_t> walk(const Prps& prps, std::uint64_t length, const List& list) {
  std::vector<std::uint64_t> addresses{prps.first};
  std::uint64_t left = length - std::min(length, page - prps.first % page);
  if (left == 0) return addresses;
  if (left <= page) return addresses.push_back(prps.second), addresses;
  std::uint64_t at = prps.second;
  while (left > 0) {
    const std::uint64_t entry = list.entries.at((at - list.address) / 8);
    const bool last_of_page = at % page == page - 8;
    if (last_of_page && left > page) {
      EXPECT_EQ(entry % page, 0U);
      at = entry;
      continue;
    }
    addresses.push_back(entry);
    left -= std::min(left, page);
    at += 8;
  }
  return addresses;
}

TEST(Prps, of_one_and_two_pages_need_no_list) {
  const Prps one = make_prps(0x5004, 100, page, {});
  EXPECT_EQ(one.first, 0x5004U);
  EXPECT_EQ(one.second, 0U);
  const Prps two = make_prps(0x5ffc, 8, page, {});
  EXPECT_EQ(two.second, 0x6000U);
  EXPECT_EQ(make_prps(0x5000, 2 * page, page, {}).second, 0x6000U);
}

TEST(Prps, name_every_page_of_any_length_and_offset) {
  for (const std::uint64_t length :
       {std::uint64_t{3} * page, 64 * page, 512 * page, 513 * page, 514 * page, 2000 * page}) {
    for (const std::uint64_t offset : {0, 4, 4092}) {
      const std::size_t bytes = prp_list_bytes(length, page);
      List list(bytes);
      const auto addresses = walk(make_prps(0x7000'0000 + offset, length, page, list.memory()), length, list);
      ASSERT_EQ(addresses.size(), (offset + length + page - 1) / page) << length << " at " << offset;
      for (std::size_t i = 1; i < addresses.size(); ++i) ASSERT_EQ(addresses[i], 0x7000'0000 + i * page);
    }
  }
}

TEST(Prps, name_memory_that_begins_and_ends_within_pages) {
  for (const std::uint64_t length : {std::uint64_t{512}, std::uint64_t{3584}, page + 512, 2 * page - 512, 9 * page + 4,
                                     511 * page + 1536, 513 * page - 4}) {
    for (const std::uint64_t offset : {0, 4, 512, 3584, 4092}) {
      List list(prp_list_bytes(length, page));
      const auto addresses = walk(make_prps(0x7000'0000 + offset, length, page, list.memory()), length, list);
      ASSERT_EQ(addresses.size(), (offset + length + page - 1) / page) << length << " at " << offset;
      EXPECT_EQ(addresses[0], 0x7000'0000 + offset);
      for (std::size_t i = 1; i < addresses.size(); ++i) ASSERT_EQ(addresses[i], 0x7000'0000 + i * page);
    }
  }
}

TEST(Prps, fill_their_list_and_no_more) {
  // The most that one page of list holds, and one more.
  EXPECT_EQ(prp_list_bytes(512 * page, page), page);
  EXPECT_EQ(prp_list_bytes(513 * page, page), 2 * page);
  EXPECT_EQ(prp_list_bytes(64 * page, page), 512U);
  EXPECT_EQ(prp_list_bytes(512, page), 8U);
}

TEST(Prps, chain_only_at_the_end_of_a_page) {
  // A list of eight entries that are the last of their page: the last of them is a page and not a chain.
  List list(64, 0x100000 + page - 64);
  make_prps(0x7000'0000, 9 * page, page, list.memory());
  EXPECT_EQ(list.entries[7], 0x7000'0000 + 8 * page);
}

TEST(Prps, can_name_one_page_again_and_again) {
  List list(prp_list_bytes(8 * page, page));
  const auto addresses = walk(make_repeated_prps(0x9000, 8 * page, page, list.memory()), 8 * page, list);
  ASSERT_EQ(addresses.size(), 8U);
  for (const std::uint64_t address : addresses) EXPECT_EQ(address, 0x9000U);
}

}  // namespace
}  // namespace penstock::nvme
