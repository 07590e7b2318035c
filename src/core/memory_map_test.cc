#include "core/memory_map.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "core/test_key_engine.h"
#include "penstock/buffer.h"

namespace penstock::core {
namespace {

class MemoryMapTest : public testing::Test {
 protected:
  Region part(std::size_t offset, std::size_t size) { return Region::host(&memory_[offset], size); }
  MemoryMap::Entry find(std::size_t offset, std::size_t size) {
    snapshot_ = map_.snapshot();
    const MemoryMap::Entry found = MemoryMap::find(*snapshot_, &memory_[offset], size);
    EXPECT_EQ(map_.find(&memory_[offset], size), found) << "whatever this thread found before";
    return found;
  }

  std::array<std::byte, 1000> memory_{};
  KeyEngine first_;
  KeyEngine second_;
  MemoryMap map_{{&first_, nullptr, &second_}};
  std::shared_ptr<const MemoryMap::Snapshot> snapshot_;
};

TEST_F(MemoryMapTest, attaches_to_every_engine_that_works) {
  ASSERT_TRUE(map_.attach(part(100, 200)).ok());
  const MemoryMap::Entry entry = find(100, 200);
  ASSERT_NE(entry, nullptr);
  ASSERT_EQ(entry->by_engine.size(), 3U);
  EXPECT_TRUE(entry->by_engine[0]);
  EXPECT_FALSE(entry->by_engine[1]);
  EXPECT_TRUE(entry->by_engine[2]);
}

TEST_F(MemoryMapTest, finds_only_what_lies_wholly_inside) {
  ASSERT_TRUE(map_.attach(part(500, 100)).ok());
  ASSERT_TRUE(map_.attach(part(100, 200)).ok());
  EXPECT_NE(find(100, 200), nullptr);
  EXPECT_NE(find(299, 1), nullptr);
  EXPECT_NE(find(550, 50), nullptr);
  EXPECT_EQ(find(99, 2), nullptr);
  EXPECT_EQ(find(299, 2), nullptr);
  EXPECT_EQ(find(300, 1), nullptr);
  EXPECT_EQ(find(600, 0), nullptr);
  EXPECT_EQ(find(0, 10), nullptr);
}

TEST_F(MemoryMapTest, finds_nothing_that_was_found_before_and_is_gone_or_another_maps) {
  ASSERT_TRUE(map_.attach(part(100, 200)).ok());
  const MemoryMap::Entry before = map_.find(&memory_[100], 200);
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(map_.find(&memory_[150], 50), before);
  MemoryMap other{{&second_}};
  EXPECT_EQ(other.find(&memory_[150], 50), nullptr);
  ASSERT_TRUE(other.attach(part(0, 1000)).ok());
  EXPECT_EQ(other.find(&memory_[150], 50)->begin, &memory_[0]);
  EXPECT_EQ(map_.find(&memory_[150], 50), before);
  ASSERT_TRUE(map_.detach(part(100, 200)).ok());
  EXPECT_EQ(map_.find(&memory_[150], 50), nullptr);
  ASSERT_TRUE(map_.attach(part(100, 200)).ok());
  const MemoryMap::Entry again = map_.find(&memory_[150], 50);
  ASSERT_NE(again, nullptr);
  EXPECT_NE(again, before);
  std::thread([&] { ASSERT_TRUE(map_.detach(part(100, 200)).ok()); }).join();
  EXPECT_EQ(map_.find(&memory_[150], 50), nullptr) << "whoever detached it";
}

TEST_F(MemoryMapTest, that_is_empty_finds_nothing_of_one_that_is_just_attached_to) {
  int wrong = 0;
  for (int round = 0; round < 200; ++round) {
    MemoryMap filled({});
    MemoryMap empty({});
    std::atomic<bool> ready{false};
    std::thread finder([&] {
      ready = true;
      while (filled.find(memory_.data(), 16) == nullptr) std::this_thread::yield();
      if (empty.find(memory_.data(), 16) != nullptr) ++wrong;
    });
    while (!ready) std::this_thread::yield();
    EXPECT_TRUE(filled.attach(part(0, memory_.size())).ok());
    finder.join();
    EXPECT_TRUE(filled.detach(part(0, memory_.size())).ok());
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(MemoryMapTest, does_not_join_neighbours) {
  ASSERT_TRUE(map_.attach(part(100, 100)).ok());
  ASSERT_TRUE(map_.attach(part(200, 100)).ok()) << "touching is not overlapping";
  EXPECT_EQ(find(150, 100), nullptr) << "two registrations are not one";
}

TEST_F(MemoryMapTest, refuses_overlaps_and_leaves_nothing_behind) {
  ASSERT_TRUE(map_.attach(part(100, 100)).ok());
  for (const auto& [offset, size] : {std::pair(100, 100), {50, 51}, {199, 10}, {120, 10}, {0, 500}}) {
    const Status status = map_.attach(part(static_cast<std::size_t>(offset), static_cast<std::size_t>(size)));
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Code::invalid_argument);
  }
  EXPECT_EQ(first_.attached.size(), 1U);
  EXPECT_EQ(map_.attach(part(0, 0)).error().code, Code::invalid_argument);
  EXPECT_EQ(map_.attach(Region{}).error().code, Code::invalid_argument);
}

TEST_F(MemoryMapTest, refuses_memory_that_is_none) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped = ::mmap(nullptr, 3 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const pages = static_cast<std::byte*>(mapped);
  ASSERT_EQ(::munmap(pages + page_bytes, page_bytes), 0);
  const auto refusal = [&](std::byte* data, std::size_t size) {
    const Status status = map_.attach(Region::host(data, size));
    return status.ok() || status.error().hint.empty() ? "none" : status.error().message;
  };
  EXPECT_EQ(refusal(nullptr, 10), "attach: empty memory");
  EXPECT_EQ(refusal(memory_.data(), 0), "attach: empty memory");
  EXPECT_EQ(refusal(memory_.data(), SIZE_MAX), "attach: the memory ends past the last address");
  EXPECT_EQ(refusal(pages + page_bytes, 10), "attach: some of the memory is not mapped");
  EXPECT_EQ(refusal(pages + page_bytes - 1, 2), "attach: some of the memory is not mapped");
  EXPECT_EQ(refusal(pages, 3 * page_bytes), "attach: some of the memory is not mapped");
  EXPECT_TRUE(first_.attached.empty());
  EXPECT_TRUE(map_.empty());
  EXPECT_TRUE(map_.attach(Region::host(pages + 1, page_bytes - 1)).ok());
  EXPECT_TRUE(map_.detach(Region::host(pages + 1, page_bytes - 1)).ok());
  ::munmap(pages, page_bytes);
  ::munmap(pages + 2 * page_bytes, page_bytes);
}

TEST_F(MemoryMapTest, refuses_memory_of_a_gpu_that_is_not_there) {
  const Status status = map_.attach({memory_.data(), 100, Domain::cuda(99)});
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(map_.empty());
}

TEST_F(MemoryMapTest, holds_the_memory_of_a_buffer_until_it_is_detached) {
  memory::AllocationOptions options;
  options.size_bytes = 4096;
  Buffer buffer = memory::make_buffer(memory::Allocation::create(options).value());
  const Region region = buffer.region();
  const auto is_mapped = [&] { return ::msync(region.data, region.size_bytes, MS_ASYNC) == 0; };
  ASSERT_TRUE(map_.attach(region).ok());
  buffer = Buffer();
  EXPECT_TRUE(is_mapped());
  ASSERT_TRUE(map_.detach(region).ok());
  EXPECT_FALSE(is_mapped());
}

TEST_F(MemoryMapTest, detaches_exactly_what_was_attached) {
  ASSERT_TRUE(map_.attach(part(100, 100)).ok());
  EXPECT_EQ(map_.detach(part(100, 99)).error().code, Code::invalid_argument);
  EXPECT_EQ(map_.detach(part(101, 99)).error().code, Code::invalid_argument);
  EXPECT_TRUE(map_.detach(part(100, 100)).ok());
  EXPECT_EQ(find(100, 100), nullptr);
  EXPECT_TRUE(first_.attached.empty());
  EXPECT_TRUE(second_.attached.empty());
  EXPECT_FALSE(map_.detach(part(100, 100)).ok());
  EXPECT_TRUE(map_.attach(part(100, 100)).ok());
}

TEST_F(MemoryMapTest, goes_on_without_an_engine_that_refuses) {
  first_.most_bytes = 10;
  ASSERT_TRUE(map_.attach(part(0, 100)).ok());
  const MemoryMap::Entry entry = find(0, 100);
  ASSERT_NE(entry, nullptr);
  EXPECT_FALSE(entry->by_engine[0]);
  EXPECT_TRUE(entry->by_engine[2]);
  EXPECT_TRUE(map_.detach(part(0, 100)).ok());
}

TEST_F(MemoryMapTest, leaves_a_snapshot_as_it_was) {
  ASSERT_TRUE(map_.attach(part(0, 100)).ok());
  const auto before = map_.snapshot();
  ASSERT_TRUE(map_.detach(part(0, 100)).ok());
  EXPECT_EQ(before->size(), 1U);
  EXPECT_TRUE(map_.snapshot()->empty());
}

TEST_F(MemoryMapTest, is_searched_while_it_changes) {
  std::atomic<bool> stop{false};
  std::thread searcher([&] {
    while (!stop) {
      const auto snapshot = map_.snapshot();
      const MemoryMap::Entry entry = MemoryMap::find(*snapshot, &memory_[10], 5);
      if (entry != nullptr) {
        EXPECT_EQ(entry->end - entry->begin, 100);
      }
    }
  });
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(map_.attach(part(0, 100)).ok());
    ASSERT_TRUE(map_.detach(part(0, 100)).ok());
  }
  stop = true;
  searcher.join();
}

class OnUse : public testing::Test {
 protected:
  static Region page(std::size_t index) { return Region::host(memory_.data() + index * page_bytes, page_bytes); }
  MemoryMap::Entry find(std::size_t index) { return MemoryMap::find(*map_.snapshot(), page(index).data, page_bytes); }

  static constexpr std::size_t page_bytes = 4096;
  static constexpr std::size_t most = MemoryMap::on_use_most;
  static inline std::array<std::byte, (most + 2) * page_bytes> memory_{};
  KeyEngine any_;
  KeyEngine attached_{KeyEngine::Reach::attached};
  const std::shared_ptr<memory::Budget> budget_ = std::make_shared<memory::Budget>((most + 1) * page_bytes);
  MemoryMap map_{{&any_, &attached_}, nullptr, {budget_}};
};

TEST_F(OnUse, memory_is_attached_to_the_engines_that_reach_no_other) {
  const auto entry = map_.attach_on_use(page(0));
  ASSERT_TRUE(entry);
  EXPECT_FALSE(entry->by_engine[0]);
  EXPECT_TRUE(entry->by_engine[1]);
  EXPECT_EQ(map_.attach_on_use(page(0)), entry) << "once";
  EXPECT_EQ(budget_->used_bytes(), page_bytes);
}

TEST_F(OnUse, the_longest_unused_makes_room_and_what_is_in_use_stays) {
  const AttachmentUse in_use(map_.attach_on_use(page(0)));
  for (std::size_t i = 1; i < most; ++i) ASSERT_TRUE(map_.attach_on_use(page(i)));
  ASSERT_TRUE(find(1)) << "used again";
  ASSERT_TRUE(map_.attach_on_use(page(most)));
  EXPECT_TRUE(find(0));
  EXPECT_TRUE(find(1));
  EXPECT_FALSE(find(2));
  EXPECT_EQ(attached_.attached.size(), most);
  EXPECT_EQ(budget_->used_bytes(), most * page_bytes);
}

TEST_F(OnUse, what_nobody_uses_makes_room_in_the_budget) {
  const auto two_pages = std::make_shared<memory::Budget>(2 * page_bytes);
  MemoryMap map{{&attached_}, nullptr, {budget_, two_pages}};
  ASSERT_TRUE(map.attach_on_use(page(0)));
  const AttachmentUse first(map.attach_on_use(page(1)));
  const AttachmentUse second(map.attach_on_use(page(2)));
  EXPECT_TRUE(second.is_valid());
  EXPECT_EQ(map.snapshot()->size(), 2U);
  EXPECT_FALSE(map.attach_on_use(page(3)));
  EXPECT_FALSE(map.attach_on_use(Region::host(page(3).data, 3 * page_bytes))) << "more than there ever is";
  EXPECT_EQ(map.snapshot()->size(), 2U);
  EXPECT_EQ(budget_->used_bytes(), 2 * page_bytes);
  EXPECT_EQ(two_pages->used_bytes(), 2 * page_bytes);
}

TEST_F(OnUse, what_no_engine_takes_is_remembered_and_costs_nothing) {
  attached_.most_bytes = 10;
  ASSERT_TRUE(map_.attach_on_use(page(0)));
  EXPECT_FALSE(find(0)->by_engine[1]);
  EXPECT_EQ(budget_->used_bytes(), 0U);
}

TEST_F(OnUse, no_engine_is_told_twice_of_memory_that_is_attached_explicitly_meanwhile) {
  std::optional<AttachmentUse> in_use(map_.attach_on_use(page(0)));
  const auto* const known = in_use->get()->by_engine[1].get();
  ASSERT_TRUE(map_.attach(page(0)).ok());
  EXPECT_FALSE(in_use->is_valid()) << "for others";
  EXPECT_EQ(find(0)->by_engine[1].get(), known);
  EXPECT_TRUE(find(0)->by_engine[0]) << "explicitly it is attached to all";
  in_use.reset();
  EXPECT_EQ(attached_.attached.size(), 1U);
  EXPECT_EQ(budget_->used_bytes(), 0U);
  EXPECT_TRUE(map_.attach_on_use(page(0))) << "it is there";
  EXPECT_FALSE(map_.attach_on_use(Region::host(page(0).data, 2 * page_bytes))) << "some of it is";
  ASSERT_TRUE(map_.detach(page(0)).ok());
  EXPECT_TRUE(attached_.attached.empty());
}

TEST_F(OnUse, what_left_the_table_is_ended_at_once_unless_it_is_in_use) {
  ASSERT_TRUE(map_.attach_on_use(page(0)));
  const auto old = map_.snapshot();
  ASSERT_TRUE(map_.attach(Region::host(page(0).data, 2 * page_bytes)).ok());
  EXPECT_EQ(attached_.attached.size(), 1U) << "though somebody looks at the table as it was";
  EXPECT_FALSE(AttachmentUse(old->front()).is_valid());
}

TEST_F(MemoryMapTest, lets_go_of_buffers_at_the_end) {
  memory::AllocationOptions options;
  options.size_bytes = 4096;
  Buffer buffer = memory::make_buffer(memory::Allocation::create(options).value());
  const Region region = buffer.region();
  ASSERT_TRUE(map_.attach(region).ok());
  ASSERT_TRUE(map_.attach(part(0, 100)).ok());
  buffer = Buffer();
  map_.let_go_of_buffers();
  EXPECT_NE(::msync(region.data, region.size_bytes, MS_ASYNC), 0) << "it is gone";
  EXPECT_EQ(first_.attached.size(), 1U) << "what is no Buffer's stays";
}

}  // namespace
}  // namespace penstock::core
