#include "engines/uring/registry.h"

#include <gtest/gtest.h>

#include <set>

namespace penstock::uring {
namespace {

std::byte* address(std::uint64_t value) {
  return reinterpret_cast<std::byte*>(value);
}

class FakeRing : public Registered {
 public:
  void forget_store(std::uint32_t index) override { stores.insert(index); }
  void forget_buffer(std::uint32_t index) override { buffers.insert(index); }
  std::set<std::uint32_t> stores;
  std::set<std::uint32_t> buffers;
};

class ARegistry : public testing::Test {
 protected:
  std::unique_ptr<AttachedMemory> attach(std::byte* data, std::size_t size) {
    auto attached = registry_.attach(Region::host(data, size)).value();
    return std::unique_ptr<AttachedMemory>(static_cast<AttachedMemory*>(attached.release()));
  }

  Registry registry_;
};

TEST_F(ARegistry, gives_every_store_a_slot_until_none_is_left) {
  std::set<std::uint32_t> indexes;
  Slot last;
  for (std::uint32_t i = 0; i < store_slots; ++i) {
    last = registry_.add_store();
    EXPECT_NE(last.registration, 0U);
    EXPECT_TRUE(indexes.insert(last.index).second);
  }
  EXPECT_EQ(registry_.add_store().registration, 0U);
  registry_.remove_store(last);
  const Slot next = registry_.add_store();
  EXPECT_EQ(next.index, last.index);
  EXPECT_NE(next.registration, last.registration);
  registry_.remove_store({});
}

TEST_F(ARegistry, clears_what_goes_on_every_ring_that_lives) {
  FakeRing stays;
  FakeRing leaves;
  registry_.join(stays);
  registry_.join(leaves);
  registry_.leave(leaves);
  registry_.add_store();
  const Slot slot = registry_.add_store();
  auto attached = attach(address(4096), 3 * piece_bytes);
  registry_.remove_store(slot);
  attached.reset();
  EXPECT_EQ(stays.stores, std::set<std::uint32_t>{slot.index});
  EXPECT_EQ(stays.buffers.size(), 3U);
  EXPECT_TRUE(leaves.stores.empty());
  EXPECT_TRUE(leaves.buffers.empty());
}

TEST_F(ARegistry, cuts_large_memory_into_pieces) {
  const std::uint64_t base = 1 << 20;
  const auto attached = attach(address(base), 2 * piece_bytes + 100);
  ASSERT_TRUE(attached);
  const auto first = attached->find(address(base), 4096);
  const auto last = attached->find(address(base + 2 * piece_bytes + 50), 50);
  ASSERT_TRUE(first && last);
  EXPECT_EQ(last->slot.index, first->slot.index + 2);
  EXPECT_EQ(last->size_bytes, 100U);
  EXPECT_EQ(last->data, address(base + 2 * piece_bytes));
  EXPECT_FALSE(attached->find(address(base + piece_bytes - 1), 2)) << "crosses two pieces";
  EXPECT_TRUE(attached->find(address(base + piece_bytes - 1), 1));
}

TEST_F(ARegistry, finds_nothing_outside_of_attached_memory) {
  const auto attached = attach(address(8192), 4096);
  EXPECT_FALSE(attached->find(address(8191), 1));
  EXPECT_FALSE(attached->find(address(12288), 1));
  EXPECT_FALSE(attached->find(address(8192), 4097));
}

TEST_F(ARegistry, attaches_nothing_when_there_is_no_room_or_no_memory) {
  EXPECT_FALSE(attach(nullptr, 10));
  EXPECT_FALSE(attach(address(4096), 0));
  EXPECT_FALSE(attach(address(4096), SIZE_MAX));
  const auto most = attach(address(4096), piece_bytes * (buffer_slots - 1));
  EXPECT_TRUE(most);
  EXPECT_FALSE(attach(address(4096), 2 * piece_bytes));
  EXPECT_TRUE(attach(address(4096), piece_bytes));
}

TEST(FixedTable, enters_a_slot_once_for_each_owner) {
  FixedTable table(4, true);
  int entered = 0;
  const auto enter = [&] { return ++entered > 0; };
  EXPECT_TRUE(table.ensure({2, 7}, enter));
  EXPECT_TRUE(table.ensure({2, 7}, enter));
  EXPECT_EQ(entered, 1);
  EXPECT_TRUE(table.ensure({2, 8}, enter));
  EXPECT_EQ(entered, 2);
  EXPECT_TRUE(table.forget(2));
  EXPECT_FALSE(table.forget(2));
}

TEST(FixedTable, remembers_that_a_slot_was_refused) {
  FixedTable table(4, true);
  int asked = 0;
  const auto refuse = [&] { return ++asked < 0; };
  EXPECT_FALSE(table.ensure({1, 7}, refuse));
  EXPECT_FALSE(table.ensure({1, 7}, refuse));
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(table.forget(1));
  EXPECT_FALSE(table.ensure({1, 0}, refuse));
  EXPECT_FALSE(FixedTable(4, false).ensure({1, 7}, refuse));
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace penstock::uring
