#include "engines/posix/queue.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <set>
#include <thread>

#include "engines/posix/engine.h"
#include "files/file_store.h"
#include "files/test_queue.h"

namespace penstock::posix {
namespace {

using engine::Done;
using engine::Op;
using engine::Path;
using namespace std::chrono_literals;

constexpr std::size_t block = 4096;
constexpr std::size_t blocks = 256;

class PosixQueue : public testing::Test {
 protected:
  Op read(std::size_t index, Path path) { return file_.read(store_, index, path); }
  // Waits for `count` completions, each once and whole; says which.
  static std::set<std::uint64_t> collect(Queue& queue, std::size_t count) {
    std::set<std::uint64_t> cookies;
    for (const Done& one : files::collect(queue, count)) {
      EXPECT_TRUE(cookies.insert(one.cookie).second);
      EXPECT_EQ(one.bytes, block);
    }
    return cookies;
  }

  const files::BlockFile file_{block, blocks};
  files::FileStore store_{files::open_file(file_.name(), {}).value()};
};

TEST_F(PosixQueue, reads_by_every_path_at_once) {
  Queue queue({.depth = 64, .threads = 4});
  const Path cold = store_.direct_fd() >= 0 ? Path::direct : Path::buffered;
  std::size_t next = 0;
  std::size_t collected = 0;
  while (collected < blocks) {
    while (next < blocks) {
      const Op op = read(next, next % 3 == 0 ? Path::cached : next % 3 == 1 ? Path::buffered : cold);
      if (queue.submit({&op, 1}) == 0) break;
      ++next;
    }
    collected += collect(queue, 1).size();
  }
  EXPECT_TRUE(file_.all_read());
  EXPECT_LE(queue.thread_count(), 4U);
}

TEST_F(PosixQueue, starts_no_thread_for_cached_bytes) {
  Queue queue({.depth = 32, .threads = 4});
  std::vector<Op> ops;
  for (std::size_t i = 0; i < 32; ++i) ops.push_back(read(i, Path::cached));
  EXPECT_EQ(queue.submit(ops), 32U);
  EXPECT_EQ(collect(queue, 32).size(), 32U);
  EXPECT_EQ(queue.thread_count(), 0U);
}

TEST_F(PosixQueue, never_starts_more_threads_than_allowed) {
  Queue queue({.depth = 64, .threads = 3});
  std::vector<Op> ops;
  for (std::size_t i = 0; i < 64; ++i) ops.push_back(read(i, Path::buffered));
  for (int round = 0; round < 5; ++round) {
    EXPECT_EQ(queue.submit(ops), 64U);
    EXPECT_EQ(collect(queue, 64).size(), 64U);
  }
  EXPECT_GE(queue.thread_count(), 1U);
  EXPECT_LE(queue.thread_count(), 3U);
}

TEST_F(PosixQueue, pushes_back_when_it_is_full) {
  Queue queue({.depth = 2, .threads = 1});
  const std::array<Op, 3> ops{read(0, Path::buffered), read(1, Path::cached), read(2, Path::buffered)};
  EXPECT_EQ(queue.submit(ops), 2U);
  EXPECT_EQ(queue.submit({&ops[2], 1}), 0U);
  EXPECT_EQ(collect(queue, 2).size(), 2U);
  EXPECT_EQ(queue.submit({&ops[2], 1}), 1U);
  EXPECT_EQ(collect(queue, 1), std::set<std::uint64_t>{2});
}

TEST_F(PosixQueue, sleeps_until_the_deadline_or_a_wake) {
  Queue queue({.depth = 1, .threads = 1});
  std::array<Done, 1> done{};
  const TimePoint begin = Clock::now();
  EXPECT_EQ(queue.poll(done, begin + 20ms), 0U);
  EXPECT_GE(Clock::now() - begin, 20ms);
  queue.wake();
  EXPECT_EQ(queue.poll(done, TimePoint::min()), 0U);
  EXPECT_EQ(queue.poll(done, TimePoint::max()), 0U);
  std::thread waker([&] { queue.wake(); });
  EXPECT_EQ(queue.poll(done, TimePoint::max()), 0U);
  waker.join();
}

TEST_F(PosixQueue, brings_a_cancelled_operation_back_exactly_once) {
  Queue queue({.depth = 64, .threads = 1});
  std::vector<Op> ops;
  for (std::size_t i = 0; i < 64; ++i) ops.push_back(read(i, i % 2 == 0 ? Path::buffered : Path::cached));
  ASSERT_EQ(queue.submit(ops), 64U);
  for (std::size_t i = 0; i < 64; ++i) queue.cancel(i);
  queue.cancel(1000);
  std::set<std::uint64_t> cookies;
  std::size_t cancelled = 0;
  for (const Done& one : files::collect(queue, 64)) {
    EXPECT_TRUE(cookies.insert(one.cookie).second);
    EXPECT_TRUE(one.code == Code::cancelled || one.bytes == block);
    cancelled += one.code == Code::cancelled ? 1 : 0;
  }
  EXPECT_EQ(cookies.size(), 64U);
  EXPECT_GE(cancelled, 32U);  // those for the polling thread had not begun
}

TEST(PosixEngine, refuses_a_queue_without_depth) {
  EXPECT_EQ(make_engine()->make_queue({.depth = 0}).error().code, Code::invalid_argument);
}

TEST(PosixEngine, works_everywhere_and_attaches_nothing) {
  const auto engine = make_engine();
  EXPECT_EQ(engine->description().name, "posix");
  EXPECT_TRUE(engine->probe().available);
  EXPECT_EQ(engine->memory(), nullptr);
  EXPECT_TRUE(engine->make_queue({.depth = 4, .run_inline = true}).ok());
}

}  // namespace
}  // namespace penstock::posix
