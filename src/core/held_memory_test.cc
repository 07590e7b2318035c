#include "core/held_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "penstock/buffer.h"

namespace penstock::core {
namespace {

Buffer make_buffer(std::size_t size_bytes) {
  memory::AllocationOptions options;
  options.size_bytes = size_bytes;
  return memory::make_buffer(memory::Allocation::create(options).value());
}

bool is_mapped(const std::byte* page) {
  return ::msync(const_cast<std::byte*>(page), 1, MS_ASYNC) == 0;
}

TEST(HeldMemory, keeps_every_buffer_that_a_range_lies_in) {
  std::vector<Buffer> buffers;
  std::vector<const std::byte*> pages;
  for (int i = 0; i < 10; ++i) {
    buffers.push_back(make_buffer(4096));
    pages.push_back(buffers.back().data());
  }
  const Buffer unused = make_buffer(4096);
  HeldMemory held;
  // In turns, and each more than once.
  for (int turn = 0; turn < 3; ++turn) {
    for (const std::byte* page : pages) EXPECT_TRUE(held.add(page + 100 * turn, 100));
  }
  buffers.clear();
  for (const std::byte* page : pages) {
    EXPECT_TRUE(is_mapped(page));
    EXPECT_EQ(held.holder_of(page + 4095)->region().data, page);
  }
  EXPECT_EQ(held.holder_of(unused.data()), nullptr);
  held.let_go();
  for (const std::byte* page : pages) EXPECT_FALSE(is_mapped(page));
}

TEST(HeldMemory, takes_memory_of_the_callers_as_it_comes) {
  std::array<std::byte, 100> own{};
  Buffer buffer = make_buffer(4096);
  HeldMemory held;
  EXPECT_TRUE(held.add(own.data(), own.size()));
  EXPECT_TRUE(held.add(buffer.data(), 4096));
  EXPECT_TRUE(held.add(own.data() + 50, 50));
  EXPECT_EQ(held.holder_of(own.data()), nullptr);
}

TEST(HeldMemory, refuses_what_is_partly_a_buffers) {
  const Buffer buffer = make_buffer(5000);
  HeldMemory held;
  EXPECT_FALSE(held.add(buffer.data(), 5001));
  EXPECT_FALSE(held.add(buffer.data() + 4999, 2));
  EXPECT_FALSE(held.add(buffer.data() - 1, 2));
  EXPECT_TRUE(held.add(buffer.data() + 4999, 1));
}

TEST(HeldMemory, that_was_let_go_of_can_be_filled_again) {
  Buffer buffer = make_buffer(4096);
  const std::byte* const page = buffer.data();
  HeldMemory held;
  EXPECT_TRUE(held.add(page, 1));
  held.let_go();
  EXPECT_EQ(held.holder_of(page), nullptr);
  EXPECT_TRUE(held.add(page, 1));
  buffer = Buffer();
  EXPECT_TRUE(is_mapped(page));
}

// Each of two that end at once may see the other; one of them is the last, and only that one knows.
TEST(HeldMemory, is_never_freed_by_who_lets_go_of_it) {
  constexpr int rounds = 2000;
  thread_local bool lets_go = false;
  std::atomic<int> freed{0};
  std::atomic<int> freed_at_once{0};
  std::array<HeldMemory, 2> held;
  std::barrier both(2);
  const auto let_go = [&](HeldMemory& one) {
    for (int i = 0; i < rounds; ++i) {
      if (&one == held.data()) {
        memory::AllocationOptions options;
        options.size_bytes = 4096;
        options.domain = Domain::pinned();
        auto allocation = memory::Allocation::create(options).value();
        allocation->on_free(&held, [&] { ++(lets_go ? freed_at_once : freed); });
        const Buffer buffer = memory::make_buffer(std::move(allocation));
        for (HeldMemory& each : held) EXPECT_TRUE(each.add(buffer.data(), 4096));
      }
      both.arrive_and_wait();
      lets_go = true;
      auto last = one.let_go();
      lets_go = false;
      last.clear();
      both.arrive_and_wait();
    }
  };
  std::thread other([&] { let_go(held[1]); });
  let_go(held[0]);
  other.join();
  EXPECT_EQ(freed_at_once, 0);
  EXPECT_EQ(freed, rounds);
}

}  // namespace
}  // namespace penstock::core
