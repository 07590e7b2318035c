#include "core/completion_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

namespace penstock::core {
namespace {

TEST(CompletionThread, runs_actions_in_order_on_a_thread_of_its_own) {
  std::vector<int> order;
  std::vector<std::thread::id> threads;
  CompletionThread completions;
  for (int i = 0; i < 100; ++i) {
    completions.post([&, i] {
      order.push_back(i);
      threads.push_back(std::this_thread::get_id());
    });
  }
  completions.close();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
    EXPECT_EQ(threads[static_cast<std::size_t>(i)], threads[0]);
  }
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST(CompletionThread, knows_when_it_is_inside_a_callback) {
  CompletionThread completions;
  std::promise<bool> inside;
  EXPECT_FALSE(CompletionThread::inside_callback());
  completions.post([&] { inside.set_value(CompletionThread::inside_callback()); });
  EXPECT_TRUE(inside.get_future().get());
  EXPECT_FALSE(CompletionThread::inside_callback());
}

TEST(CompletionThread, takes_posts_from_its_own_actions) {
  CompletionThread completions;
  std::promise<void> second;
  completions.post([&] { completions.post([&] { second.set_value(); }); });
  second.get_future().get();
}

TEST(CompletionThread, runs_what_comes_after_closing_on_the_thread_that_posts) {
  CompletionThread completions;
  completions.close();
  std::thread::id ran_on;
  bool inside = false;
  completions.post([&] {
    ran_on = std::this_thread::get_id();
    inside = CompletionThread::inside_callback();
  });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_TRUE(inside);
  EXPECT_FALSE(CompletionThread::inside_callback());
}

TEST(CompletionThread, may_be_destroyed_by_its_own_action) {
  auto completions = std::make_shared<CompletionThread>();
  std::promise<void> last;
  std::promise<void> go;
  CompletionThread& posted_to = *completions;
  posted_to.post([&last, held = std::move(completions), ready = go.get_future().share()]() mutable {
    ready.wait();
    held.reset();
    last.set_value();
  });
  go.set_value();
  last.get_future().get();
}

TEST(CompletionThread, lets_go_of_an_action_before_it_waits_for_the_next) {
  CompletionThread completions;
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  completions.post([held = std::move(held)] {});
  completions.close();
  EXPECT_TRUE(watched.expired());
}

TEST(CompletionThread, frees_memory_at_once_though_nothing_is_posted) {
  CompletionThread completions;
  std::atomic<bool> sleeps{false};
  completions.post([&] { sleeps = true; });
  while (!sleeps) std::this_thread::yield();
  std::promise<std::thread::id> freed;
  auto freed_on = freed.get_future();
  std::byte byte{};
  std::shared_ptr<const void> owner(&byte, [&](const void*) { freed.set_value(std::this_thread::get_id()); });
  memory::FreedLater::List memory;
  memory.add(memory::Allocation::adopt(Region::host(&byte, 1), std::move(owner)));
  completions.free_there(std::move(memory));
  ASSERT_EQ(freed_on.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_NE(freed_on.get(), std::this_thread::get_id());
}

TEST(CompletionThread, loses_nothing_that_many_threads_post) {
  std::atomic<int> ran{0};
  CompletionThread completions;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) completions.post([&] { ++ran; });
    });
  }
  for (auto& thread : threads) thread.join();
  completions.close();
  EXPECT_EQ(ran, 2000);
}

}  // namespace
}  // namespace penstock::core
