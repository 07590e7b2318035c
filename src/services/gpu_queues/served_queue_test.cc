#include "services/gpu_queues/served_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace penstock::gpu_queues {
namespace {

class ServedQueueTest : public testing::Test {
 protected:
  static constexpr std::uint32_t entries = 4;

  std::uint32_t fetch(std::size_t at_most = 8) { return queue_.fetch(words_, std::span(commands_).first(at_most)); }

  std::array<nvme::Command, entries> submissions_{};
  std::array<nvme::Completion, 2 * entries> completions_{};
  std::uint32_t tail_ = 0;
  HostWords words_;
  ServedQueue<> queue_{nvme::QueuePairMemory{.id = 1,
                                             .entries = entries,
                                             .completion_entries = 2 * entries,
                                             .submissions = submissions_.data(),
                                             .completions = completions_.data(),
                                             .tail_doorbell = &tail_}};
  std::array<nvme::Command, 8> commands_{};
};

TEST_F(ServedQueueTest, fetches_no_more_than_the_queue_holds_however_often_the_tail_is_moved) {
  tail_ = 3;
  EXPECT_EQ(fetch(2), 2U);
  EXPECT_EQ(fetch(), 1U);
  for (const std::uint32_t tail : {2U, 1U, 0U}) {
    tail_ = tail;
    EXPECT_EQ(fetch(), 0U) << "none of the three has been completed";
    EXPECT_EQ(queue_.in_flight(), 3U);
  }
  queue_.complete(words_, 0, nvme::status::success);
  tail_ = 2;
  EXPECT_EQ(fetch(), 1U) << "one for one";
  EXPECT_EQ(queue_.in_flight(), 3U);
}

TEST_F(ServedQueueTest, ignores_a_tail_that_can_not_be) {
  for (const std::uint32_t tail : {entries, entries + 1, UINT32_MAX}) {
    tail_ = tail;
    EXPECT_EQ(fetch(), 0U);
  }
  tail_ = 1;
  EXPECT_EQ(fetch(), 1U);
}

}  // namespace
}  // namespace penstock::gpu_queues
