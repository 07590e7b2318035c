#include "files/threaded_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "engine/store.h"

namespace penstock::files {
namespace {

using engine::Done;
using engine::Op;
using namespace std::chrono_literals;

// Counts groups; operations of even length may be grouped.
class CountingWorker : public Worker {
 public:
  struct Counts {
    std::atomic<std::size_t> largest_group{0};
    std::atomic<std::size_t> single{0};
  };
  explicit CountingWorker(Counts& counts) : counts_(counts) {}

  Done run(const Op& op) override {
    ++counts_.single;
    return {.cookie = op.cookie, .bytes = op.length};
  }
  bool joins_group(const Op& op) const override { return op.length % 2 == 0; }
  void run_group(std::span<const Op> ops, Completions& completions) override {
    std::size_t before = counts_.largest_group.load();
    while (before < ops.size() && !counts_.largest_group.compare_exchange_weak(before, ops.size())) {
    }
    for (const Op& op : ops) completions.complete({.cookie = op.cookie, .bytes = op.length});
  }

 private:
  Counts& counts_;
};

std::set<std::uint64_t> collect(engine::Queue& queue, std::size_t count) {
  std::set<std::uint64_t> cookies;
  std::vector<Done> done(16);
  const TimePoint deadline = Clock::now() + 10s;
  while (cookies.size() < count && Clock::now() < deadline) {
    const std::size_t got = queue.poll(done, deadline);
    for (std::size_t i = 0; i < got; ++i) EXPECT_TRUE(cookies.insert(done[i].cookie).second);
  }
  return cookies;
}

std::vector<Op> ops_of_length(std::uint64_t length, std::size_t count) {
  std::vector<Op> ops(count);
  for (std::size_t i = 0; i < count; ++i) ops[i] = {.length = length, .cookie = i};
  return ops;
}

TEST(ThreadedQueue, gives_neighbours_that_fit_to_one_thread_at_once) {
  CountingWorker::Counts counts;
  ThreadedQueue queue({.depth = 100, .threads = 1}, [&] { return std::make_unique<CountingWorker>(counts); });
  const auto ops = ops_of_length(2, 100);
  ASSERT_EQ(queue.submit(ops), 100U);
  EXPECT_EQ(collect(queue, 100).size(), 100U);
  EXPECT_EQ(counts.largest_group, ThreadedQueue::max_group);
  EXPECT_EQ(counts.single, 0U);
}

TEST(ThreadedQueue, keeps_the_others_apart) {
  CountingWorker::Counts counts;
  ThreadedQueue queue({.depth = 64, .threads = 2}, [&] { return std::make_unique<CountingWorker>(counts); });
  auto ops = ops_of_length(1, 64);
  ASSERT_EQ(queue.submit(ops), 64U);
  EXPECT_EQ(collect(queue, 64).size(), 64U);
  EXPECT_EQ(counts.single, 64U);
  for (std::size_t i = 0; i < ops.size(); ++i) ops[i].length = i % 3;
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(queue.submit(ops), 64U);
    EXPECT_EQ(collect(queue, 64).size(), 64U);
  }
  EXPECT_LE(queue.thread_count(), 2U);
}

// Tells which thread it works on.
class NamingWorker : public Worker {
 public:
  explicit NamingWorker(std::atomic<std::thread::id>& thread) : thread_(thread) {}
  Done run(const Op& op) override {
    thread_ = std::this_thread::get_id();
    return {.cookie = op.cookie, .bytes = op.length};
  }

 private:
  std::atomic<std::thread::id>& thread_;
};

class PlainStore : public engine::Store {
 public:
  explicit PlainStore(Locality locality) : Store({.locality = locality}) {}
  Result<Identity> identity() const override { return info().identity; }
};

TEST(ThreadedQueue, copies_cached_bytes_itself_unless_a_server_may_be_asked_about_them) {
  std::atomic<std::thread::id> worked;
  ThreadedQueue queue({.depth = 4, .threads = 1}, [&] { return std::make_unique<NamingWorker>(worked); });
  const auto worker_for = [&](Locality locality) {
    PlainStore store(locality);
    const Op op{.path = engine::Path::cached, .store = &store, .length = 1};
    EXPECT_EQ(queue.submit({&op, 1}), 1U);
    EXPECT_EQ(collect(queue, 1).size(), 1U);
    return worked.load();
  };
  const auto here = std::this_thread::get_id();
  EXPECT_EQ(worker_for(Locality::local), here);
  EXPECT_EQ(worker_for(Locality::memory), here);
  EXPECT_NE(worker_for(Locality::network), here);
  EXPECT_NE(worker_for(Locality::fuse), here);
}

}  // namespace
}  // namespace penstock::files
