#include "files/threaded_queue.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <semaphore>
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
  Result<engine::State> state() const override { return engine::State{}; }
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

// Ends an operation when it is let to.
class PatientWorker : public Worker {
 public:
  explicit PatientWorker(std::counting_semaphore<>& ends) : ends_(ends) {}
  Done run(const Op& op) override {
    ends_.acquire();
    return {.cookie = op.cookie, .bytes = op.length};
  }

 private:
  std::counting_semaphore<>& ends_;
};

bool becomes_readable(int descriptor, std::chrono::milliseconds time) {
  pollfd wanted{descriptor, POLLIN, 0};
  return ::poll(&wanted, 1, static_cast<int>(time.count())) == 1;
}

TEST(ThreadedQueue, tells_of_each_end_by_its_event_and_of_nothing_else) {
  std::counting_semaphore<> ends(0);
  ThreadedQueue queue({.depth = 4, .threads = 1}, [&] { return std::make_unique<PatientWorker>(ends); });
  std::array<Done, 4> done{};
  for (std::uint64_t round = 0; round < 3; ++round) {
    const Op op{.length = 1, .cookie = round};
    ASSERT_EQ(queue.submit({&op, 1}), 1U);
    EXPECT_EQ(queue.poll(done, TimePoint::min()), 0U);
    const int event = queue.event();
    ASSERT_GE(event, 0);
    EXPECT_FALSE(becomes_readable(event, 0ms));
    queue.wake();
    EXPECT_FALSE(becomes_readable(event, 0ms)) << "who waits for several queues is woken elsewhere";
    ends.release();
    EXPECT_TRUE(becomes_readable(event, 20s));
    ASSERT_EQ(queue.poll(done, TimePoint::min()), 1U);
    EXPECT_EQ(done[0].cookie, round);
  }
  EXPECT_FALSE(becomes_readable(queue.event(), 0ms)) << "what was told is forgotten";
}

TEST(ThreadedQueue, tells_of_what_ended_before_its_event_was_asked_for) {
  std::counting_semaphore<> ends(2);
  ThreadedQueue queue({.depth = 4, .threads = 1}, [&] { return std::make_unique<PatientWorker>(ends); });
  const auto ops = ops_of_length(1, 2);
  ASSERT_EQ(queue.submit(ops), 2U);
  std::array<Done, 1> done{};
  // One stays behind.
  while (queue.poll(done, Clock::now() + 20s) == 0) {
  }
  EXPECT_TRUE(becomes_readable(queue.event(), 20s));
  EXPECT_EQ(queue.poll(done, Clock::now() + 20s), 1U);
}

TEST(ThreadedQueue, tells_of_one_that_was_cancelled_before_a_thread_took_it) {
  std::counting_semaphore<> ends(0);
  ThreadedQueue queue({.depth = 4, .threads = 1}, [&] { return std::make_unique<PatientWorker>(ends); });
  const auto ops = ops_of_length(1, 2);
  ASSERT_EQ(queue.submit(ops), 2U);
  const int event = queue.event();
  EXPECT_FALSE(becomes_readable(event, 0ms));
  queue.cancel(1);
  EXPECT_TRUE(becomes_readable(event, 20s)) << "whether it is asked for before";
  EXPECT_TRUE(becomes_readable(queue.event(), 20s)) << "or afterwards";
  ends.release();
  EXPECT_EQ(collect(queue, 2).size(), 2U);
}

TEST(ThreadedQueue, has_no_event_while_it_has_something_to_copy_itself) {
  std::counting_semaphore<> ends(1);
  ThreadedQueue queue({.depth = 4, .threads = 1}, [&] { return std::make_unique<PatientWorker>(ends); });
  PlainStore store(Locality::local);
  const Op op{.path = engine::Path::cached, .store = &store, .length = 1};
  ASSERT_EQ(queue.submit({&op, 1}), 1U);
  EXPECT_EQ(queue.event(), -1);
  EXPECT_EQ(collect(queue, 1).size(), 1U);
  EXPECT_GE(queue.event(), 0);
}

// Waits until as many threads are at work as there should be.
class MeetingWorker : public Worker {
 public:
  struct Meeting {
    std::mutex mutex;
    std::condition_variable all_there;
    std::size_t expected = 0;
    std::set<std::thread::id> there;
    std::uint64_t longest = 0;
  };
  explicit MeetingWorker(Meeting& meeting) : meeting_(meeting) {}
  Done run(const Op& op) override {
    std::unique_lock lock(meeting_.mutex);
    meeting_.there.insert(std::this_thread::get_id());
    meeting_.longest = std::max(meeting_.longest, op.length);
    meeting_.all_there.notify_all();
    EXPECT_TRUE(meeting_.all_there.wait_for(lock, 20s, [&] { return meeting_.there.size() == meeting_.expected; }));
    return {.cookie = op.cookie, .bytes = op.length};
  }

 private:
  Meeting& meeting_;
};

constexpr std::uint64_t short_stretch = 64 << 10;  // of reads that are not long

Op shared_op(PlainStore& store, std::uint64_t length, std::uint64_t cookie) {
  return {.path = engine::Path::cached, .store = &store, .length = length, .cookie = cookie, .is_shared = true};
}

TEST(ThreadedQueue, has_threads_share_a_read_and_no_more_of_them_than_it_may) {
  MeetingWorker::Meeting meeting{.expected = 3};
  ThreadedQueue queue({.depth = 4, .threads = 1, .sharers = 3},
                      [&] { return std::make_unique<MeetingWorker>(meeting); });
  PlainStore store(Locality::local);
  const std::array ops{shared_op(store, 8 * short_stretch, 1), shared_op(store, 10, 2)};
  ASSERT_EQ(queue.submit(ops), 2U);
  std::array<Done, 4> done{};
  std::map<std::uint64_t, std::uint64_t> bytes;
  while (bytes.size() < 2) {
    const std::size_t count = queue.poll(done, Clock::now() + 20s);
    ASSERT_NE(count, 0U);
    for (const Done& each : std::span(done).first(count)) bytes[each.cookie] = each.bytes;
  }
  EXPECT_EQ(bytes, (std::map<std::uint64_t, std::uint64_t>{{1, 8 * short_stretch}, {2, 10}}));
  EXPECT_FALSE(meeting.there.contains(std::this_thread::get_id()));
  EXPECT_EQ(meeting.longest, short_stretch);
  EXPECT_EQ(queue.thread_count(), 3U);
}

TEST(ThreadedQueue, without_sharers_copies_a_shared_read_itself) {
  std::atomic<std::thread::id> worked;
  ThreadedQueue queue({.depth = 4, .threads = 1}, [&] { return std::make_unique<NamingWorker>(worked); });
  PlainStore store(Locality::local);
  const Op op = shared_op(store, 8 * short_stretch, 1);
  ASSERT_EQ(queue.submit({&op, 1}), 1U);
  EXPECT_EQ(collect(queue, 1).size(), 1U);
  EXPECT_EQ(worked.load(), std::this_thread::get_id());
}

// Ends an operation when it is let to, unless it is shared.
class PatientButSharingWorker : public PatientWorker {
 public:
  using PatientWorker::PatientWorker;
  Done run(const Op& op) override {
    return op.is_shared ? Done{.cookie = op.cookie, .bytes = op.length} : PatientWorker::run(op);
  }
};

TEST(ThreadedQueue, shares_a_read_whatever_other_operations_wait_for) {
  std::counting_semaphore<> ends(0);
  ThreadedQueue queue({.depth = 64, .threads = 2, .sharers = 3},
                      [&] { return std::make_unique<PatientButSharingWorker>(ends); });
  const auto slow = ops_of_length(1, 40);
  ASSERT_EQ(queue.submit(slow), 40U);
  PlainStore store(Locality::memory);
  const Op op = shared_op(store, 8 * short_stretch, 100);
  ASSERT_EQ(queue.submit({&op, 1}), 1U);
  std::array<Done, 4> done{};
  ASSERT_EQ(queue.poll(done, Clock::now() + 20s), 1U);
  EXPECT_EQ(done[0].cookie, 100U);
  EXPECT_EQ(done[0].bytes, 8 * short_stretch);
  EXPECT_LE(queue.thread_count(), 5U);
  ends.release(40);
  EXPECT_EQ(collect(queue, 40).size(), 40U);
}

TEST(ThreadedQueue, cancels_what_no_thread_has_of_a_shared_read) {
  std::counting_semaphore<> ends(0);
  ThreadedQueue queue({.depth = 4, .threads = 1, .sharers = 2}, [&] { return std::make_unique<PatientWorker>(ends); });
  PlainStore store(Locality::local);
  const std::array ops{shared_op(store, 100 * short_stretch, 1), shared_op(store, 10, 2)};
  ASSERT_EQ(queue.submit(ops), 2U);
  queue.cancel(2);
  std::array<Done, 4> done{};
  ASSERT_EQ(queue.poll(done, Clock::now() + 20s), 1U);
  EXPECT_EQ(done[0].cookie, 2U);
  EXPECT_EQ(done[0].code, Code::cancelled);
  queue.cancel(1);
  ends.release(2);  // no more than the threads may have taken
  ASSERT_EQ(queue.poll(done, Clock::now() + 20s), 1U);
  EXPECT_EQ(done[0].cookie, 1U);
  EXPECT_EQ(done[0].code, Code::cancelled);
}

}  // namespace
}  // namespace penstock::files
