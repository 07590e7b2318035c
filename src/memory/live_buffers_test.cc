#include "memory/live_buffers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "penstock/buffer.h"

namespace penstock::memory {
namespace {

Buffer make_buffer(std::size_t size_bytes) {
  AllocationOptions options;
  options.size_bytes = size_bytes;
  return make_buffer(Allocation::create(options).value());
}

LiveBuffers::Place find(const std::byte* address) {
  return LiveBuffers::of_process().find(address);
}

bool is_there(const std::byte* page) {
  return ::msync(const_cast<std::byte*>(page), 1, MS_ASYNC) == 0;
}

TEST(LiveBuffers, know_the_memory_of_every_buffer_to_its_last_byte) {
  const Buffer buffer = make_buffer(5000);
  for (const std::size_t offset : {0, 1, 4999}) {
    const auto place = find(buffer.data() + offset);
    ASSERT_NE(place.held, nullptr);
    EXPECT_EQ(place.held->region().data, buffer.data());
    EXPECT_TRUE(place.contains(buffer.data() + offset));
    EXPECT_TRUE(place.covers(buffer.data() + offset, 5000 - offset));
    EXPECT_FALSE(place.covers(buffer.data() + offset, 5001 - offset));
  }
  EXPECT_EQ(find(buffer.data() + 5000).held, nullptr) << "the rest of the page is nobody's";
  EXPECT_EQ(find(buffer.data() - 1).held, nullptr);
}

TEST(LiveBuffers, know_how_far_memory_reaches_that_is_no_buffers) {
  const Buffer one = make_buffer(4096);
  const Buffer other = make_buffer(4096);
  const Buffer& first = one.data() < other.data() ? one : other;
  const Buffer& last = one.data() < other.data() ? other : one;
  const std::byte here{};
  const auto place = find(&here);
  EXPECT_EQ(place.held, nullptr);
  EXPECT_TRUE(place.contains(&here));
  EXPECT_FALSE(place.contains(first.data()));
  EXPECT_FALSE(place.contains(last.data() + 4095));
}

TEST(LiveBuffers, tell_what_came_and_went_since_a_thread_looked_there) {
  std::optional<Buffer> buffer = make_buffer(4096);
  const std::byte* const data = buffer->data();
  EXPECT_NE(find(data).held, nullptr);
  std::thread([&] { buffer.reset(); }).join();
  EXPECT_EQ(find(data).held, nullptr);
  std::vector<Buffer> others;
  for (int i = 0; i < 20; ++i) {
    const std::byte here{};
    EXPECT_EQ(find(&here).held, nullptr);
    others.push_back(make_buffer(4096));
    EXPECT_NE(find(others.back().data()).held, nullptr);
    EXPECT_NE(find(others.front().data()).held, nullptr);
  }
}

TEST(LiveBuffers, find_memory_also_when_a_thread_ends) {
  const Buffer buffer = make_buffer(4096);
  struct Last {
    ~Last() { EXPECT_NE(find(data).held, nullptr) << "after what the thread had remembered"; }
    const std::byte* data = nullptr;
  };
  std::thread([&] {
    static thread_local Last last;  // ends after what is made later
    last.data = buffer.data();
    EXPECT_NE(find(buffer.data()).held, nullptr);
  }).join();
}

TEST(LiveBuffers, keep_memory_until_its_last_holder_lets_go_of_it) {
  Buffer buffer = make_buffer(4096);
  const std::byte* const data = buffer.data();
  auto place = find(data);
  std::shared_ptr<const void> another = hold_memory(buffer.region());
  buffer = Buffer();
  EXPECT_TRUE(is_there(data));
  place = {};
  EXPECT_TRUE(is_there(data));
  EXPECT_NE(find(data).held, nullptr) << "as long as it is there, it can be lent";
  another.reset();
  EXPECT_FALSE(is_there(data));
  EXPECT_EQ(find(data).held, nullptr);
}

TEST(LiveBuffers, hold_nothing_for_memory_that_is_no_buffers) {
  std::byte own[16] = {};
  EXPECT_EQ(hold_memory(Region::host(own, sizeof own)), nullptr);
  EXPECT_EQ(hold_memory(Region{}), nullptr);
  EXPECT_EQ(hold_memory(make_buffer(0).region()), nullptr);
}

// Without the handlers of fork, a child would now and then find the lock taken by a thread that it does not have.
TEST(LiveBuffers, can_be_used_in_a_child_whatever_other_threads_did) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer does not follow a fork of several threads";
#endif
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) make_buffer(1);
    });
  }
  for (int i = 0; i < 50; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(20);
      const Buffer buffer = make_buffer(1);
      ::_exit(find(buffer.data()).held != nullptr ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace penstock::memory
