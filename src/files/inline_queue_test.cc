#include "files/inline_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "files/test_scratch.h"
#include "files/transfer.h"

namespace penstock::files {
namespace {

TEST(InlineQueue, has_done_its_work_when_submit_returns) {
  const ScratchFolder folder;
  FileStore store(open_file(folder.write_pattern("a", 8192), {}).value());
  std::array<std::byte, 3000> memory{};
  InlineQueue queue(2);
  std::array<engine::Op, 3> ops{};
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i] = {.store = &store, .offset = 1000 * i, .length = 1000, .memory = memory.data() + 1000 * i, .cookie = i};
  }
  EXPECT_EQ(queue.submit(ops), 2U);
  EXPECT_TRUE(has_pattern(memory.data(), 0, 2000));
  EXPECT_EQ(queue.submit({&ops[2], 1}), 0U);
  std::array<engine::Done, 8> done{};
  ASSERT_EQ(queue.poll(done, TimePoint::min()), 2U);
  EXPECT_EQ(done[1].cookie, 1U);
  EXPECT_EQ(done[1].bytes, 1000U);
  EXPECT_EQ(queue.submit({&ops[2], 1}), 1U);
  EXPECT_EQ(queue.poll(done, Clock::now() + std::chrono::hours(1)), 1U);
}

TEST(InlineQueue, sleeps_until_it_is_woken) {
  InlineQueue queue(1);
  std::array<engine::Done, 1> done{};
  queue.wake();
  EXPECT_EQ(queue.poll(done, TimePoint::min()), 0U);  // would not have slept
  EXPECT_EQ(queue.poll(done, TimePoint::max()), 0U);
  std::thread waker([&] { queue.wake(); });
  EXPECT_EQ(queue.poll(done, TimePoint::max()), 0U);
  waker.join();
  EXPECT_EQ(queue.poll(done, Clock::now() + std::chrono::milliseconds(5)), 0U);
}

}  // namespace
}  // namespace penstock::files
