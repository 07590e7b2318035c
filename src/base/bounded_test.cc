#include "base/bounded.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

namespace penstock {
namespace {

TEST(Bounded, a_call_that_ends_is_waited_for) {
  auto ended = std::make_shared<bool>(false);
  EXPECT_TRUE(comes_back(60, [ended] { *ended = true; }));
  EXPECT_TRUE(*ended);
}

TEST(Bounded, a_call_that_hangs_is_left_to_itself_with_what_it_owns) {
  auto ends = std::make_shared<std::promise<void>>();
  auto owned = std::make_shared<int>(0);
  const std::weak_ptr<int> seen = owned;
  EXPECT_FALSE(comes_back(0.01, [end = ends->get_future().share(), owned = std::move(owned)] { end.wait(); }));
  EXPECT_FALSE(seen.expired());
  ends->set_value();
  while (!seen.expired()) std::this_thread::yield();
}

TEST(Bounded, nobody_waits_for_a_call_that_is_left_to_a_thread) {
  auto ends = std::make_shared<std::promise<void>>();
  auto ended = std::make_shared<std::promise<void>>();
  ASSERT_TRUE(leave_to_thread([end = ends->get_future().share(), ended] {
    end.wait();
    ended->set_value();
  }));
  ends->set_value();
  EXPECT_EQ(ended->get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace penstock
